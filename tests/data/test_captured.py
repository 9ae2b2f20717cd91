# SPDX-License-Identifier: Apache-2.0
"""What an order depends on is found where libraries keep it."""

import random
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader, IterableDataset, Sampler

from lightning_sagemaker.data.captured import Capture
from tests.checkpoint.test_own_generators import Empty


class Shuffle:
    """A stage that draws by the number of the epoch, which it counts itself."""

    def __init__(self):
        self.epoch = 0


class Pipeline(IterableDataset):
    """A list of stages, as webdataset's; a stage may be a loader of another pipeline."""

    def __init__(self, *stages):
        self.pipeline = list(stages)

    def __iter__(self):
        return iter(())


def test_a_stage_of_a_pipeline_in_a_pipeline_goes_on_counting():
    def made():
        shuffle = Shuffle()
        return shuffle, Capture(Pipeline(DataLoader(Pipeline(Shuffle(), shuffle))), is_own=True)

    shuffle, capture = made()
    shuffle.epoch = 3
    taken = capture.take_objects()
    shuffle, capture = made()
    capture.put_objects(taken)
    assert shuffle.epoch == 3


class Names(Sampler):
    """The order of the classes is shuffled in place; pytorch-metric-learning's MPerClassSampler has numbers of NumPy."""

    def __init__(self, kind):
        self.classes = [kind(number) for number in range(8)]

    def __iter__(self):
        random.shuffle(self.classes)
        return iter([*self.classes])


class Balanced(Sampler):
    """For each of many classes an order, and how much of it was used."""

    def __init__(self):
        self.orders = {name: np.arange(5) + 5 * name for name in range(100)}
        self.used = dict.fromkeys(self.orders, 0)

    def __iter__(self):
        drawn = []
        for name in np.random.permutation(100):
            drawn.append(int(self.orders[name][self.used[name]]))
            self.used[name] += int(name) % 3
            if self.used[name] >= 5:
                np.random.shuffle(self.orders[name])
                self.used[name] = 0
        return iter(drawn)


class Buckets(Sampler):
    """Batches that were made once, each shuffled, and all of them."""

    def __init__(self, number):
        self.batches = [list(range(4 * start, 4 * start + 4)) for start in range(number)]

    def __iter__(self):
        for batch in self.batches[::7]:
            random.shuffle(batch)
        random.shuffle(self.batches)
        return iter([tuple(batch) for batch in self.batches])


class Table(Sampler):
    def __init__(self):
        self.batches = np.arange(40).reshape(10, 4)

    def __iter__(self):
        np.random.shuffle(self.batches)
        return iter(self.batches.tolist())


class Files(IterableDataset):
    def __init__(self):
        self.settings = Empty()
        self.files = [Path(f"/data/{number}") for number in range(9)]

    def __iter__(self):
        random.shuffle(self.files)
        return iter([*self.files])


ORDERS = {
    "names": lambda: Names(str),
    "numbers of NumPy": lambda: Names(np.int64),
    "classes": Balanced,
    "batches": lambda: Buckets(10),
    "many batches": lambda: Buckets(200),
    "table": Table,
    "files": Files,
}


@pytest.mark.parametrize("name", ORDERS)
def test_an_order_that_each_epoch_changes_in_place_goes_on(name):
    def made():
        source = ORDERS[name]()
        of_data = isinstance(source, IterableDataset)
        return source, Capture(DataLoader(source) if of_data else DataLoader(range(800), sampler=source))

    random.seed(1)
    np.random.seed(1)
    source, capture = made()
    orders = [list(source) for _ in range(2)]
    taken = capture.take()
    orders += [list(source) for _ in range(3)]
    for begins in (False, True):  # also one that has begun, as where a script asks for its number of steps
        source, capture = made()
        if begins:
            list(source)
        capture.put(taken)
        assert [list(source) for _ in range(3)] == orders[2:]


def test_little_is_kept_of_an_order_of_many_batches():
    source = Buckets(2000)
    capture = Capture(DataLoader(range(8000), batch_sampler=source))
    random.shuffle(source.batches)
    taken = capture.take_objects()
    assert taken["lists"] == {}
    assert [len(places) for places in taken["permuted"].values()] == [2000]
