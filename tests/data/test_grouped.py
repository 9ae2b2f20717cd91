# SPDX-License-Identifier: Apache-2.0
"""Batches that workers hand over several at once are those made without workers, whatever is done with the loader."""

import itertools
import os
import pickle
import random
import re
import signal
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from lightning_sagemaker._compat.guard import NameGone
from lightning_sagemaker.data import grouped
from lightning_sagemaker.data.batches import EvaluationBatches, TrainingBatches
from lightning_sagemaker.data.changing import ChangingIterator
from lightning_sagemaker.data.grouped import GroupedLoader, InGroups, Parcel
from lightning_sagemaker.data.handover import MOST, hand_over
from lightning_sagemaker.data.tracked import catch_up, release, watch
from lightning_sagemaker.recipes._common.data.loaders import RecipeLoader
from lightning_sagemaker.recovery.seeds import seeded_batch

SIZE, BATCH = 103, 4
"""Of which there are 25 batches: no multiple of 2, 3 or 8."""
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Failure(Exception):
    """Of a dataset."""


class Rows(Dataset):
    """Batches of numbers that follow from the samples' own, of any length and type."""

    depends_on_indices_only = True

    def __init__(self, fails_at=(), wide=0, seconds=0.0):
        self.fails_at, self.wide, self.seconds = fails_at, wide, seconds

    def __len__(self):
        return SIZE

    def __getitem__(self, draws):
        if self.seconds:
            time.sleep(self.seconds)
        if (failing := set(self.fails_at) & set(draws)) != set():
            raise Failure(f"sample {failing.pop()} cannot be read")
        generator = torch.Generator().manual_seed(draws[0] % (1 << 31))
        length, bits = 1 + draws[0] % 7, 40 if self.wide else 8 + draws[0] % 40
        return {
            "index": torch.tensor(draws),
            "ids": torch.randint(1 << bits, (BATCH, length + self.wide), generator=generator),
            "mask": torch.rand(length, generator=generator) < 0.5,
            "weights": torch.rand(length, generator=generator),
        }


class Drawn(Rows):
    """Draws from the global generators, which recovery seeds by a batch's place."""

    def __getitem__(self, draws):
        return {"drawn": torch.rand(len([*draws])), "index": torch.tensor(list(draws))}


def make(workers, most=8, dataset=None, evaluates=False, persistent=True, **options):
    batches = EvaluationBatches(SIZE, BATCH) if evaluates else TrainingBatches(SIZE, BATCH, seed=3)
    loader = RecipeLoader(
        Rows() if dataset is None else dataset,
        batch_size=None,
        sampler=batches,
        num_workers=workers,
        collate_fn=hand_over,
        persistent_workers=persistent and workers > 0,
        **options,
    )
    loader.batches_per_message = most
    MADE.append(loader)
    return loader


def equal(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype
            assert torch.equal(one[name], other[name]), name


def epochs(loader, count, begin=0):
    found = []
    for epoch in range(begin, count):
        loader.sampler.set_epoch(epoch)
        found += list(loader)
    return found


MADE = []


@pytest.fixture(autouse=True)
def workers_end():
    """Not when the garbage collector finds them, in which Python 3.11 may close a queue's file twice."""
    yield
    for loader in MADE:
        if loader._iterator is not None:
            loader._iterator._shutdown_workers()
            loader._iterator = None
    MADE.clear()


@pytest.fixture(autouse=True)
def of_any_duration(monkeypatch):
    """The machine's speed does not decide how many batches a message has."""
    monkeypatch.setattr(grouped, "_SECONDS", float("inf"))


@pytest.fixture
def messages(monkeypatch):
    """One entry for each message that arrived: the batches in it, if it was of several."""
    found, inner = [], _MultiProcessingDataLoaderIter._process_data

    def process(self, data, *rest):
        found.append(len(data.batches) if isinstance(data, Parcel) else None)
        return inner(self, data, *rest)

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_process_data", process)
    return found


@pytest.mark.parametrize("most", [1, 3, 8])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("watched", [False, True])
def test_batches_are_those_made_without_workers(workers, most, watched):
    loader = make(workers, most)
    if watched:
        loader, _ = watch(loader, pytest.fail)
    equal(epochs(loader, 3), epochs(make(0), 3))


@pytest.mark.parametrize(
    "options",
    [
        {"evaluates": True},
        {"persistent": False},
        pytest.param({"multiprocessing_context": "spawn"}, marks=pytest.mark.slow),
    ],
)
def test_loaders_of_other_kinds(options):
    plain = {name: value for name, value in options.items() if name != "multiprocessing_context"}
    equal(epochs(make(2, **options), 2), epochs(make(0, **plain), 2))


def test_there_are_far_fewer_messages(messages):
    assert len(epochs(make(1), 2)) == 50
    first = [1, 1, 1, 8, 8, 6]
    assert messages == 2 * first  # one batch each, until the first has arrived and says how large it is
    messages.clear()
    epochs(make(1, most=1), 1)
    assert messages == [None] * 25


@pytest.mark.parametrize(("wide", "most"), [(0, 8), (MOST // BATCH // 8 // 3, 3), (MOST // BATCH // 8, 1)])
def test_a_message_does_not_become_large(messages, wide, most):
    equal(epochs(make(1, dataset=Rows(wide=wide)), 1), epochs(make(0, dataset=Rows(wide=wide)), 1))
    assert max(messages) <= most
    assert most == 1 or max(messages) > 1


def test_slow_batches_are_left_to_all_workers(messages, monkeypatch):
    monkeypatch.setattr(grouped, "_SECONDS", 0.01)
    epochs(make(2, dataset=Rows(seconds=0.02)), 1)
    assert set(messages) == {1}


def test_what_does_not_travel_in_a_message_stays_alone(messages):
    loader = make(1)
    loader.collate_fn = dict
    equal(epochs(loader, 1), epochs(make(0), 1))
    assert set(messages) == {1}


@pytest.mark.parametrize("most", [pytest.param(3, marks=pytest.mark.slow), 8])
@pytest.mark.parametrize("workers", [(2, 2), (1, 3), (3, 0), (0, 2)])
def test_a_loader_goes_on_from_any_place(workers, most):
    expected = epochs(make(0), 2)
    loader, watched = watch(make(workers[0], most), pytest.fail)
    places, found = [], []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        watched.begin_epoch()
        for taken, batch in enumerate(loader, 1):
            found.append(batch)
            places.append((epoch, taken, pickle.dumps(watched.position(taken))))
    equal(found, expected)
    release(loader)
    for number in {*range(0, len(places), 4), 7, 11, 13, 23, 24, 25, 49}:
        epoch, taken, position = places[number]
        assert taken == number % 25 + 1
        loader, watched = watch(make(workers[1], most), pytest.fail)
        loader.sampler.set_epoch(epoch)
        watched.seek(pickle.loads(position))
        rest = list(loader)
        equal(rest + epochs(loader, 2, epoch + 1), expected[number + 1 :])
        release(loader)


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_a_loader_goes_back_in_the_process_that_iterates_it(ahead):
    """As after a rank was lost: what has arrived is not given."""
    expected = epochs(make(0), 2)
    loader, watched = watch(make(2), pytest.fail)
    loader.sampler.set_epoch(0)
    watched.begin_epoch()
    iterator = iter(loader)
    found = [next(iterator) for _ in range(11)]
    position = watched.position(11)
    for _ in range(ahead):
        next(iterator)
    watched.seek(position)
    found += list(loader)
    equal(found + epochs(loader, 2, 1), expected)


def test_an_epoch_that_was_left_early_is_over():
    loader = make(2)
    loader.sampler.set_epoch(0)
    for number, _ in enumerate(loader):
        if number == 9:  # within a message
            break
    equal(epochs(loader, 2, 1), epochs(make(0), 2, 1))


class OwnDraws(Rows):
    """Of a recipe that somebody has written: its batches have a worker's own random numbers."""

    depends_on_indices_only = False

    def __getitem__(self, draws):
        return {"drawn": torch.rand(3)}


def test_a_dataset_that_does_not_say_so_goes_on_drawing():
    """Its batches are a message each, with the states of the worker, as before."""
    torch.manual_seed(7)
    left_alone = epochs(watch(make(2, dataset=OwnDraws()), pytest.fail)[0], 1)
    torch.manual_seed(7)
    loader, watched = watch(make(2, dataset=OwnDraws()), pytest.fail)
    begun = list(itertools.islice(iter(loader), 9))
    position = watched.here()
    torch.manual_seed(8)
    loader, watched = watch(make(2, dataset=OwnDraws()), pytest.fail)
    watched.seek(position)
    equal(begun + epochs(loader, 1), left_alone)


def test_workers_are_caught_up_at_an_epochs_end():
    loader, watched = watch(make(2), pytest.fail)
    watched.begin_epoch()
    first = epochs(loader, 1)
    position = watched.position(25)
    loader, watched = watch(make(2), pytest.fail)
    catch_up(watched, position)
    watched.begin_epoch()
    equal(first + epochs(loader, 2, 1), epochs(make(0), 2))
    release(loader)
    assert type(loader) is RecipeLoader


@pytest.mark.parametrize("watched", [True, False])
def test_the_number_of_workers_changes_within_an_epoch(watched):
    draw, loader, found = random.Random(5), make(2), []
    loader.workers_wanted = 2
    if watched:
        loader, watcher = watch(loader, pytest.fail)
    loader.sampler.batches_done = lambda: 0 if watched else len(found) % 25  # as a Trainer's progress
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        if watched:
            watcher.begin_epoch()
        iterator = iter(loader)
        assert isinstance(iterator, ChangingIterator)
        for batch in iterator:
            found.append(batch)
            if len(found) % 25 and draw.random() < 0.2:
                loader.workers_wanted = draw.choice([0, 1, 2, 3])
    equal(found, epochs(make(0), 3))


def test_what_a_batchs_data_draws_follows_from_its_place():
    found = []
    for workers in (0, 1, 3):
        loader, watched = watch(make(workers, dataset=Drawn()), pytest.fail)
        watched.mark = lambda batch, number: seeded_batch(batch, 7, 0, number, 1)
        torch.manual_seed(workers)
        found.append(epochs(loader, 1))
    equal(found[1], found[0])
    equal(found[2], found[0])


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("watched", [False, True])
def test_an_error_comes_in_the_place_of_its_batch(workers, watched):
    order = list(TrainingBatches(SIZE, BATCH, seed=3))
    dataset, fails = Rows(fails_at=(order[0][1], order[13][2], order[14][0], order[24][3])), {0, 13, 14, 24}
    loader = make(workers, dataset=dataset)
    if watched:
        loader, _ = watch(loader, pytest.fail)
    iterator, expected = iter(loader), epochs(make(0), 1)
    if not watched:
        iterator = loader._get_iterator()  # a generator would be over
    for number in range(25):
        if number in fails:
            with pytest.raises(Failure, match=r"(?s)in DataLoader worker process \d.*sample \d+ cannot be read"):
                next(iterator)
        else:
            equal([next(iterator)], [expected[number]])
    with pytest.raises(StopIteration):
        next(iterator)


def die(worker: int) -> None:
    raise Failure(f"worker {worker} cannot begin")


def test_an_error_of_a_workers_beginning_is_raised():
    with pytest.raises(Failure, match="worker 0 cannot begin"):
        next(iter(make(2, worker_init_fn=die)))


def test_a_worker_that_is_killed_is_an_error():
    loader = make(2, dataset=Rows(seconds=0.01))
    iterator = loader._get_iterator()
    for _ in range(6):
        next(iterator)
    os.kill(iterator._workers[1].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid.* \d+\) (is killed|exited)"):
        list(iterator)


def test_a_loader_of_ones_own_kind_is_left_alone(messages):
    class Own(GroupedLoader):
        batches_per_message = 1

    loader = Own(Rows(), batch_size=None, sampler=TrainingBatches(SIZE, BATCH), num_workers=1, collate_fn=hand_over)
    assert not isinstance(loader._get_iterator(), InGroups)
    loader = GroupedLoader(list(range(8)), batch_size=2, num_workers=1)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert set(messages) == {None}


def test_pinned_are_the_batches_and_not_their_errors(monkeypatch):
    monkeypatch.setattr(grouped, "pin_memory", lambda batch: ("pinned", batch))
    failed = object.__new__(grouped.ExceptionWrapper)
    assert Parcel([1, failed], None, 0.0).pin_memory().batches == [("pinned", 1), failed]


def test_a_torch_that_names_things_otherwise_is_refused(monkeypatch):
    monkeypatch.setattr(grouped._BaseDataLoaderIter, "__init__", lambda self, loader: None)
    monkeypatch.setattr(InGroups, "_shutdown", True, raising=False)  # nothing has begun
    with pytest.raises(NameGone, match=r"_dataset.*HINT: "):
        InGroups(make(1))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="memory is listed in /proc on Linux")
def test_batches_take_no_shared_memory():
    before = _shared_memory()  # other tests of this process leave theirs mapped until they are collected
    kept = epochs(make(1), 1)
    assert _shared_memory() <= before
    assert len(kept) == 25


def _shared_memory():
    """The names of torch's shared memory that this process has mapped."""
    return set(re.findall(r"/dev/shm/torch_\w+", Path("/proc/self/maps").read_text()))
