# SPDX-License-Identifier: Apache-2.0
"""Loaders that begin their order several times, more often where they load a state: they give what they would have given."""

import itertools

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler

from lightning_sagemaker.data.epoch_end import pass_end
from lightning_sagemaker.data.tracked import watch

BATCHES = 6


class Drawn(Sampler):
    """Draws an order, from a generator of its own, as soon as it is begun: as Lightning's wrapper of a sampler does."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(3)

    def __len__(self):
        return 4 * BATCHES

    def __iter__(self):
        return iter(torch.randperm(len(self), generator=self.generator).tolist())


class Batches(BatchSampler):
    def __iter__(self):
        return iter(self.of(iter(self.sampler)))

    def of(self, order):
        while batch := list(itertools.islice(order, self.batch_size)):
            yield batch


class Stateful(DataLoader):
    """As ``torchdata``'s: it begins the order ``fresh`` times, and twice more where it loads a state."""

    fresh, loaded, given, finished = 1, None, 0, False

    def __iter__(self):
        loaded, self.loaded = self.loaded, None
        order = self.begun(self.fresh + (0 if loaded is None else 2))
        if loaded is not None and loaded["finished"]:
            loaded, order = None, self.begun(self.fresh)
        self.given = 0 if loaded is None else loaded["given"]
        for _ in range(self.given):
            next(order)
        return self.rest(order)

    def begun(self, times):
        for _ in range(times):
            order = iter(self.batch_sampler)
        return order

    def rest(self, order):
        self.finished = False
        for batch in order:
            self.given += 1
            yield batch
        self.finished = True

    def state_dict(self):
        return {"given": self.given, "finished": self.finished}

    def load_state_dict(self, state):
        self.loaded = state


def _watched(fresh):
    loader = Stateful(range(4 * BATCHES), batch_sampler=Batches(Drawn(), 4, drop_last=False))
    loader.fresh = fresh
    return watch(loader, print)


def _epochs(loader, watched, number):
    found = []
    for _ in range(number):
        watched.begin_epoch()
        found.append(list(loader))
    return found


@pytest.mark.parametrize("fresh", [1, 2])
@pytest.mark.parametrize("taken", [1, 4])
def test_within_an_epoch(fresh, taken):
    alone = _epochs(*_watched(fresh), 3)
    loader, watched = _watched(fresh)
    assert _epochs(loader, watched, 1) == alone[:1]
    watched.begin_epoch()
    assert [batch for _, batch in zip(range(taken), loader, strict=False)] == alone[1][:taken]
    position = watched.position(taken)
    loader, watched = _watched(fresh)
    watched.seek(position)
    assert list(loader) == alone[1][taken:]
    assert _epochs(loader, watched, 1) == alone[2:]


@pytest.mark.parametrize("fresh", [1, 2])
def test_between_epochs(fresh):
    alone = _epochs(*_watched(fresh), 3)
    loader, watched = _watched(fresh)
    assert _epochs(loader, watched, 2) == alone[:2]
    position = watched.here()
    loader, watched = _watched(fresh)
    pass_end(watched, position)
    assert _epochs(loader, watched, 1) == alone[2:]


def test_nothing_is_drawn_otherwise_than_without_a_watch():
    loader, watched = _watched(2)
    plain = Stateful(range(4 * BATCHES), batch_sampler=Batches(Drawn(), 4, drop_last=False))
    plain.fresh = 2
    assert _epochs(loader, watched, 2) == [list(plain), list(plain)]
