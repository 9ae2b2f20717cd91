# SPDX-License-Identifier: Apache-2.0
"""What is not known of a loader is not made up."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lightning_sagemaker.data.dealing import as_bits, is_counted, remaining

PLACE = {"num_replicas": 2, "rank": 0}


def test_the_rest_of_an_epoch_is_known_of_torchs_loaders_only():
    """Others may look like one."""
    loader, nothing = DataLoader(range(8), 2), as_bits(torch.arange(4).numpy(), 8)
    assert remaining(loader, PLACE, 0, 4, 0, nothing) == [[4, 6]]
    own = SimpleNamespace(dataset=range(8), sampler=SequentialSampler(range(8)), batch_size=2)
    assert remaining(own, PLACE, 0, 4, 0, nothing) is None
    assert not is_counted(own)
    assert not is_counted(SimpleNamespace(dataset=range(8)))


@pytest.mark.parametrize(
    "sampler",
    [
        SubsetRandomSampler(range(0, 8, 2)),
        WeightedRandomSampler([1.0] * 8, 8),
        RandomSampler(range(8), replacement=True),
        RandomSampler(range(8), num_samples=12),
    ],
    ids=["subset", "weights", "replacement", "more"],
)
def test_the_rest_is_not_all_samples_that_are_left_where_an_epoch_has_not_all_of_them_once(sampler):
    """Those that are left are another subset, such as that of a validation."""
    taken = as_bits(torch.tensor([0, 2]).numpy(), 8)
    assert remaining(DataLoader(range(8), 2, sampler=sampler), {"num_replicas": 1, "rank": 0}, 0, 2, 0, taken) is None
