# SPDX-License-Identifier: Apache-2.0
"""Loaders whose workers' batches would be returned as they are finished: each sample is seen once nevertheless."""

import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lightning_sagemaker.data.tracked import release, watch

SIZE, BATCH = 24, 4

pytestmark = pytest.mark.skipif(
    "in_order" not in vars(DataLoader(range(2))), reason="this torch returns batches in order only"
)


class Slow(Dataset):
    """The first batch takes longer than the first one of the other worker."""

    def __init__(self):
        self.has_other = torch.zeros(1).share_memory_()

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        if index == 2 * BATCH - 1:
            self.has_other.fill_(1)
        until = time.monotonic() + 20
        while index == 0 and not self.has_other and time.monotonic() < until:
            time.sleep(0.2)
        time.sleep(0.2 if index == 0 else 0)
        return torch.tensor(index)


class Renamed(DataLoader):
    """With an iteration of its own, as those of a script."""

    def __iter__(self):
        yield from super().__iter__()


@pytest.mark.parametrize("kind", [DataLoader, Renamed])
def test_each_sample_is_seen_once_if_an_epoch_is_resumed(kind):
    def loader():
        return kind(Slow(), BATCH, num_workers=2, in_order=False)

    assert next(iter(loader())).tolist() != [0, 1, 2, 3], "torch's own returns the slow batch later"
    said = []
    first, watched = watch(loader(), said.append)
    batches = iter(first)
    seen = [index for _ in range(2) for index in next(batches).tolist()]
    position = watched.here()
    batches = None
    release(first)
    assert first.in_order is False
    second, watched = watch(loader(), said.append)
    watched.seek(position)
    seen += [index for batch in second for index in batch.tolist()]
    release(second)
    assert sorted(seen) == [*range(SIZE)]
    assert "in_order=False" in said[0]
