# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism of each kind of family, in both engines: every gradient, relative to that of one process."""

from pathlib import Path

import pytest
import transformers

from tests.conftest import fork_ranks, read_ranks
from tests.parallel.gradients_worker import KINDS


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    place = tmp_path_factory.mktemp("gradients")
    fork_ranks(Path(__file__).with_name("gradients_worker.py"), place, processes=2)
    return read_ranks(place)


def test_losses_and_gradients_are_those_of_one_process(ranks):
    kinds = [kind for kind, (name, _, _) in KINDS.items() if hasattr(transformers, name)]
    for found in ranks:
        assert sorted(found) == sorted(f"{engine} {kind}" for engine in ("DTensor", "plain") for kind in kinds)
        wrong = {name: row for name, row in found.items() if row[0] > 1e-7 or row[1] > 1e-6}
        assert not wrong


def test_each_rank_has_a_part_of_the_matrices(ranks):
    for found in ranks:
        assert all(share < 0.95 for *_, share in found.values()), found
