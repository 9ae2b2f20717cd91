# SPDX-License-Identifier: Apache-2.0
"""Whatever the ranks, workers, batches and stops of an epoch: every sample once, by the loaders that train."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from lightning_sagemaker.data.batches import TrainingBatches
from lightning_sagemaker.data.loader import BegunLate
from lightning_sagemaker.data.order import Blocks
from lightning_sagemaker.data.tracked import watch

EPOCH = 3


class Draws(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, draws):
        return [draw - EPOCH * self.size for draw in draws]


@st.composite
def runs(draw, largest_workers):
    """Size and blocks of the data, then starts: ranks, workers, accumulation, samples of a process, steps until it stops."""
    size = draw(st.integers(60, 700))
    blocks = draw(st.none() | st.builds(Blocks, st.integers(1, 90), st.integers(1, 6), st.booleans()))
    start = st.tuples(
        st.integers(1, 5), st.integers(0, largest_workers), st.integers(1, 3), st.integers(1, 4), st.integers(0, 9)
    )
    return size, blocks, draw(st.lists(start, min_size=1, max_size=5))


def loaders(size, blocks, ranks, workers, accumulate, each):
    found = []
    for rank in range(ranks):
        batches = TrainingBatches(size, ranks * accumulate * each, ranks, rank, accumulate, 11, blocks=blocks)
        batches.set_epoch(EPOCH)
        found.append(BegunLate(Draws(size), batch_size=None, sampler=batches, num_workers=workers))
    return found


def check(run):
    size, blocks, starts = run
    given, done, ordered_by = [], 0, None
    for number, (ranks, workers, accumulate, each, steps) in enumerate(starts):
        in_step = ranks * accumulate * each
        ordered_by = ordered_by or in_step
        positions, last = [], number == len(starts) - 1
        for loader in loaders(size, blocks, ranks, workers, accumulate, each):
            rest = loader.sampler.remaining(done, ordered_by)
            stop = len(rest) if last else min(steps * accumulate, len(rest))
            loader, watched = watch(loader, pytest.fail)
            watched.seek_rest(rest, 0, None)
            iterator = iter(loader)
            given += [sample for _ in range(stop) for sample in next(iterator)]
            positions.append((stop, pickle.loads(pickle.dumps(watched.position(stop)))))
            del iterator
        assert len({stop for stop, _ in positions}) == 1  # as many batches on each rank
        # The same sizes again: a position leads on to the same batches as not having stopped.
        for (stop, position), loader in zip(positions, loaders(size, blocks, ranks, 0, accumulate, each), strict=True):
            if position is not None and position["order"] is not None:
                expected = [list(batch) for batch in loader.sampler.remaining(done, ordered_by)[stop:]]
                loader, watched = watch(loader, pytest.fail)
                watched.seek(position)
                assert [[draw + EPOCH * size for draw in batch] for batch in loader] == expected
        done += positions[0][0] * in_step // accumulate
    whole = size // (starts[0][0] * starts[0][2] * starts[0][3]) * starts[0][0] * starts[0][2] * starts[0][3]
    left = max(0, whole - done)
    assert len(given) == len(set(given)) == done
    assert set(given) <= set(range(size))
    assert left < starts[-1][0] * starts[-1][2] * starts[-1][3]  # less than a step of the last run


@settings(max_examples=40, deadline=None)
@given(runs(0))
def test_every_sample_once(run):
    check(run)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(runs(3))
def test_every_sample_once_with_workers(run):
    check(run)


@pytest.mark.parametrize("workers", [1, 3])
def test_one_run_with_workers(workers):
    check((500, Blocks(32, 4, near=True), [(2, workers, 1, 4, 7), (3, 0, 2, 3, 4), (1, workers, 1, 8, 9)]))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_steps_are_the_same_for_any_number_of_ranks_and_ranks_read_few_blocks(ranks):
    blocks, step = Blocks(50, 30, near=True), 240
    alone = TrainingBatches(3000, step, blocks=blocks)
    parts = [list(TrainingBatches(3000, step, ranks, rank, blocks=blocks)) for rank in range(ranks)]
    touched = []
    for number, whole in enumerate(alone):
        own = [set(part[number]) for part in parts]
        assert set.union(*own) == set(whole)
        touched.append([len({sample // 50 for sample in samples}) for samples in own])
    assert np.mean(touched) < 31 / ranks + 1.5


def test_a_loader_that_is_counted_keeps_no_list_of_what_it_gave():
    sizes = []
    for size in (600, 6000):
        loader, watched = watch(loaders(size, None, 1, 0, 1, 4)[0], pytest.fail)
        list(loader)
        assert not watched._issued
        sizes.append(len(pickle.dumps(watched.position(size // 4))))
    assert abs(sizes[1] - sizes[0]) < 100
