# SPDX-License-Identifier: Apache-2.0
"""What is not known of a loader is not made up."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from lightning_sagemaker.data.dealing import as_bits, is_counted, remaining
from lightning_sagemaker.data.tracked import watch

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


@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_that_are_dealt_what_one_process_has_left_get_each_sample_once(shuffle):
    """One process has torch's order, ranks have that of a ``DistributedSampler``, which Lightning puts in its place."""
    seen = torch.randperm(12, generator=torch.Generator().manual_seed(1))[:4]
    rest = []
    for rank in range(2):
        loader = DataLoader(range(12), 2, sampler=DistributedSampler(range(12), 2, rank, shuffle=shuffle))
        batches = remaining(loader, {"num_replicas": 2, "rank": rank}, 0, 4, 0, as_bits(seen.numpy(), 12))
        rest += [index for batch in batches for index in batch]
    assert sorted([*seen.tolist(), *rest]) == [*range(12)]


def test_what_ranks_have_been_dealt_is_recorded_for_another_deal():
    loader = DataLoader(range(12), 2, sampler=DistributedSampler(range(12), 2, 0, shuffle=True))
    loader, watched = watch(loader, print)
    watched.seek_rest([[3, 5], [7, 9]], 2, as_bits(torch.tensor([0, 1, 2, 4]).numpy(), 12))
    assert next(iter(loader)).tolist() == [3, 5]
    bits = watched.position(3)["bits"]
    assert torch.equal(bits, as_bits(torch.tensor([0, 1, 2, 3, 4, 5]).numpy(), 12))
