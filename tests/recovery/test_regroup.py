# SPDX-License-Identifier: Apache-2.0
"""Who sends shards of weights to whom."""

import pytest

from lightning_sagemaker.recovery.regroup import Transfer

SHARDS = Transfer(dict, lambda _: None, replica_size=2)


@pytest.mark.parametrize(
    ("order", "holders", "sources"),
    [
        ([0, 1, 2, 3], [0, 1, 2, 3], {}),
        ([0, 1, 2, 3], [0, 1], {2: 0, 3: 1}),
        ([2, 3, 0, 1], [2, 3], {0: 2, 1: 3}),
        ([0, 1, 2, 3], [1, 2, 3], {0: 2}),
        ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3], {4: 0, 5: 1, 6: 2, 7: 3}),  # each sends once
        ([0, 1], [1], {0: None}),
    ],
)
def test_a_rank_gets_its_shards_from_one_that_has_the_same(order, holders, sources):
    assert SHARDS.sources(order, holders) == sources
