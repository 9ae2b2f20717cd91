# SPDX-License-Identifier: Apache-2.0
"""Loaders that create their iterators themselves go on as if left alone: their workers' draws, and an epoch's end."""

import itertools
import random
import time

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from tests.chaos.test_resumed import BATCH, SAMPLES, Numbers, alone_and_resumed


class Rows(IterableDataset):
    """A stream in an order that depends on an epoch, which its workers count."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        return iter([Numbers()[index] for index in random.Random(self.epoch).sample(range(SAMPLES), SAMPLES)])


class Around:
    """As webdataset's ``WebLoader``: it has a loader in a list."""

    def __init__(self):
        self.pipeline = [DataLoader(Rows(), BATCH, num_workers=1, persistent_workers=True)]

    def __iter__(self):
        for batch in self.pipeline[0]:
            yield batch + 1


class Doubled(DataLoader):
    def __iter__(self):
        return (batch * 2 for batch in super().__iter__())


class Batches:
    """From where the loader has been told to go on."""

    begin = 0

    def __len__(self):
        return SAMPLES // BATCH

    def __iter__(self):
        yield from torch.randperm(SAMPLES).view(-1, BATCH).tolist()[self.begin :]


class Eager(Batches):
    """Drawn as they are begun."""

    def __iter__(self):
        return iter([*super().__iter__()])


class Stateful(DataLoader):
    """As ``torchdata``'s: a state of an epoch's end makes an iterator that has ended, and then another one."""

    given, loaded, batches = 0, None, Batches

    def __init__(self, num_workers=1, **options):
        super().__init__(Numbers(), batch_sampler=self.batches(), num_workers=num_workers, **options)

    def __iter__(self):
        begin, self.loaded = self.loaded or 0, None
        self.batch_sampler.begin = self.given = begin
        if not self.persistent_workers:
            iterator = self._get_iterator()
            if begin == len(self):
                self.batch_sampler.begin = self.given = 0
                iterator = self._get_iterator()
        elif self._iterator is None:
            self._iterator = iterator = self._get_iterator()
            if begin == len(self):
                self.batch_sampler.begin = self.given = 0
                iterator._reset(self)
        else:
            iterator = self._iterator
            iterator._reset(self)
        return self.counted(iterator)

    def counted(self, batches):
        for batch in batches:
            self.given += 1
            yield batch

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.loaded, self._iterator = state["given"], None


class DrawnAtOnce(Stateful):
    """As ``torchdata``'s, over batches that are drawn as they are begun, which is once more for a state."""

    batches = Eager

    def __iter__(self):
        if self.num_workers:
            return super().__iter__()
        self.given, self.loaded = self.loaded or 0, None
        iterator = self._get_iterator()
        if self.given == len(self):
            iterator, self.given = self._get_iterator(), 0
        elif self.given:
            iterator._sampler_iter = itertools.islice(iterator._index_sampler, self.given, None)
        return self.counted(iterator)


class Nodes:
    """As ``torchdata.nodes.Loader``: it looks for a batch after a state, and begins anew if there is none."""

    def __init__(self):
        self.restart_on_stop_iteration = True
        self.loaded, self.order, self.given, self.ahead = None, [], 0, None

    def __iter__(self):
        self.loaded, loaded, self.ahead = None, self.loaded, None
        self.order, self.given = torch.randperm(SAMPLES).view(-1, BATCH).tolist(), loaded or 0
        if loaded is not None and self.restart_on_stop_iteration:
            self.ahead = self.read()
            if self.ahead is None:
                self.order, self.given = torch.randperm(SAMPLES).view(-1, BATCH).tolist(), 0
        return iter(self.next, None)

    def next(self):
        batch, self.ahead = self.read() if self.ahead is None else self.ahead, None
        self.given += batch is not None
        return batch

    def read(self):
        indices = self.order[self.given] if self.given < len(self.order) else None
        return None if indices is None else torch.stack([Numbers()[index] for index in indices])

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.loaded = state["given"]


LOADERS = {
    "within another": Around,
    "an iteration of its own": lambda: Doubled(Numbers(), BATCH, shuffle=True, num_workers=1, persistent_workers=True),
    "a state of its own": Stateful,
    "a state, and workers that outlive epochs": lambda: Stateful(persistent_workers=True),
    "a state, and batches that are drawn at once": lambda: DrawnAtOnce(num_workers=0),
    "nodes": Nodes,
}


@pytest.mark.parametrize("loader", LOADERS)
def test_goes_on_as_if_it_had_been_left_alone(tmp_path, loader):
    alone, resumed = alone_and_resumed(lambda _: LOADERS[loader](), tmp_path, [4, 10, 17])
    assert len(alone) == 3 * SAMPLES // BATCH
    assert resumed == alone


def test_batches_that_are_drawn_at_once_for_workers_that_outlive_epochs(tmp_path):
    """torch's iterator keeps the batch sampler that it was made with."""
    alone, resumed = alone_and_resumed(lambda _: DrawnAtOnce(persistent_workers=True), tmp_path, [14])
    assert resumed == alone


def test_a_batch_sampler_that_draws_as_it_is_begun_gives_what_it_gives_without_us(tmp_path):
    """torch begins it twice where there are workers."""

    def loader(_):
        return DataLoader(Numbers(), batch_sampler=Eager(), num_workers=1)

    alone, resumed = alone_and_resumed(loader, tmp_path, [4, 10])
    assert resumed == alone


class Unseeded(IterableDataset):
    """As webdataset's ``shuffle``: seeded anew by each process."""

    def __iter__(self):
        return iter(torch.tensor(random.Random(time.time_ns()).sample(range(SAMPLES), SAMPLES)).float().repeat(2, 1).T)


@pytest.mark.parametrize("kind", [Unseeded, Rows])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_gives_other_batches_when_it_is_read_again_is_named(tmp_path, kind, workers, recwarn):
    alone_and_resumed(lambda _: DataLoader(kind(), BATCH, num_workers=workers), tmp_path, [4])
    said = [str(one.message) for one in recwarn if "gave other batches when it was read again" in str(one.message)]
    assert len(said) == (kind is Unseeded)
    assert all("HINT: seed what shuffles it" in one for one in said)
