# SPDX-License-Identifier: Apache-2.0
"""Loaders with their own state whose iteration is a generator, resumed within an epoch and at its end."""

import pytest
import torch
from torch.utils.data import DataLoader

from tests.chaos.test_resumed import BATCH, SAMPLES, Numbers, alone_and_resumed


class Order:
    """The rest of an epoch's order."""

    epoch = begin = 0

    def __iter__(self):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch))
        return iter(order[self.begin :].tolist())

    def __len__(self):
        return SAMPLES


class Streaming(DataLoader):
    """As streaming's: a state is taken when an iteration is run, and one of an epoch's end gives an empty iteration."""

    taken = 0

    def __init__(self):
        super().__init__(Numbers(), BATCH, sampler=Order())
        self.loaded, self.next_epoch = None, 0

    def __iter__(self):
        epoch, begin = self.next_epoch, 0
        if self.loaded is not None and self.loaded["epoch"] >= epoch:
            epoch, begin = self.loaded["epoch"], self.loaded["taken"]
        self.next_epoch, self.taken = epoch + 1, begin
        self.sampler.epoch, self.sampler.begin = epoch, begin * BATCH
        for batch in super().__iter__():
            self.taken += 1
            yield batch

    def state_dict(self):
        return {"epoch": self.next_epoch - 1, "taken": self.taken}

    def load_state_dict(self, state):
        self.loaded = dict(state)


class LitData(Streaming):
    """As litdata's: one of an epoch's end is followed by the next epoch; another by its rest until that has been read."""

    restores = False

    def __iter__(self):
        if not self.restores:
            self.next_epoch, self.taken = self.next_epoch + 1, 0
        self.sampler.epoch, self.sampler.begin = self.next_epoch - 1, self.taken * BATCH
        for batch in DataLoader.__iter__(self):
            self.taken += 1
            yield batch
        self.restores = False

    def load_state_dict(self, state):
        self.next_epoch, self.taken = state["epoch"] + 1, state["taken"]
        self.restores = 0 < self.taken < len(self)


@pytest.mark.parametrize("stops", [[4], [10], [13, 17], [20, 25]], ids=str)
@pytest.mark.parametrize("loader", [Streaming, LitData])
def test_goes_on_as_if_it_had_been_left_alone(tmp_path, loader, stops):
    alone, resumed = alone_and_resumed(lambda _: loader(), tmp_path, stops)
    assert len(alone) == 3 * SAMPLES // BATCH
    assert resumed == alone


@pytest.mark.parametrize("stops", [[4], [7], [12]], ids=str)
def test_an_epoch_that_a_limit_ends_is_not_gone_on_with(tmp_path, stops):
    alone, resumed = alone_and_resumed(lambda _: Streaming(), tmp_path, stops, limit_train_batches=7)
    assert resumed == alone
