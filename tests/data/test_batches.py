# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from lightning_sagemaker.data.batches import EvaluationBatches, TrainingBatches, sample_indices
from lightning_sagemaker.recipes._common.data.padding import Padding

SIZE, GLOBAL_BATCH = 1303, 12
LENGTHS = np.random.default_rng(0).integers(3, 200, SIZE)


def global_batches(num_replicas, accumulate, epoch=0, seed=0, lengths=None, done=0):
    """The draws of each optimizer step, as the ranks' loaders would make them."""
    ranks = []
    for rank in range(num_replicas):
        batches = TrainingBatches(SIZE, GLOBAL_BATCH, num_replicas, rank, accumulate, seed, lengths)
        batches.set_epoch(epoch)
        batches.batches_done = lambda: done * accumulate
        draws = list(batches)
        assert len(draws) == len(batches) - done * accumulate
        assert {len(batch) for batch in draws} <= {GLOBAL_BATCH // num_replicas // accumulate}
        ranks.append(np.array(draws).reshape(-1, GLOBAL_BATCH // num_replicas))
    return [set(step.ravel().tolist()) for step in np.stack(ranks, axis=1)]


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["equal", "grouped"])
@pytest.mark.parametrize(("num_replicas", "accumulate"), [(2, 1), (4, 1), (1, 3), (2, 2), (4, 3)])
def test_global_batches_do_not_depend_on_the_processes(num_replicas, accumulate, lengths):
    expected = global_batches(1, 1, lengths=lengths)
    assert [len(step) for step in expected] == [GLOBAL_BATCH] * (SIZE // GLOBAL_BATCH)
    assert len(set.union(*expected)) == GLOBAL_BATCH * (SIZE // GLOBAL_BATCH)  # each sample at most once
    assert global_batches(num_replicas, accumulate, lengths=lengths) == expected


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["equal", "grouped"])
def test_epochs_and_seeds_shuffle_anew(lengths):
    first, second = global_batches(1, 1, lengths=lengths), global_batches(1, 1, epoch=1, lengths=lengths)
    assert all(SIZE <= draw < 2 * SIZE for step in second for draw in step)
    assert [{draw % SIZE for draw in step} for step in second] != first
    assert global_batches(1, 1, seed=1, lengths=lengths) != first


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["equal", "grouped"])
def test_a_resumed_epoch_goes_on_with_the_next_step(lengths):
    steps = SIZE // GLOBAL_BATCH
    epoch = global_batches(2, 2, 1, lengths=lengths)
    for done in (0, 1, 17, steps - 1, steps):
        assert global_batches(2, 2, 1, lengths=lengths, done=done) == epoch[done:]


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["equal", "grouped"])
@pytest.mark.parametrize(
    ("num_replicas", "accumulate", "size"), [(1, 3, 12), (4, 1, 12), (3, 1, 18), (2, 1, 6), (5, 2, 40)]
)
def test_what_remains_of_an_epoch_is_the_same_samples_in_any_batches(num_replicas, accumulate, size, lengths):
    """12 samples a step were trained on, of other processes and accumulation; the rest is cut into steps of ``size``."""
    done = 17 * GLOBAL_BATCH
    order = TrainingBatches(SIZE, GLOBAL_BATCH, lengths=lengths)
    expected = order.global_batches(0).reshape(-1)[done:].tolist()
    ranks = []
    for rank in range(num_replicas):
        batches = TrainingBatches(SIZE, size, num_replicas, rank, accumulate, lengths=lengths)
        ranks.append(np.array(batches.remaining(done, GLOBAL_BATCH)).reshape(-1, size // num_replicas))
    steps = np.concatenate(ranks, axis=1)
    used = len(expected) // size * size
    assert sorted(steps.ravel().tolist()) == sorted(expected[:used])
    for number, step in enumerate(steps):
        assert sorted(step.tolist()) == sorted(expected[number * size : (number + 1) * size])


def test_grouping_saves_padding_and_gives_all_processes_equally_long_batches():
    def padded(lengths):
        ranks = []
        for rank in range(2):
            batches = TrainingBatches(SIZE, GLOBAL_BATCH, 2, rank, accumulate=2, lengths=lengths)
            ranks.append([[LENGTHS[i] for i in sample_indices(batch, SIZE)] for batch in batches])
        longest = np.array([[max(batch) for batch in rank] for rank in ranks])
        return longest.sum() * 3 / sum(sum(batch) for rank in ranks for batch in rank), np.abs(longest[0] - longest[1])

    grouped, differences = padded(LENGTHS)
    assert grouped < 1.02 < 1.3 < padded(None)[0]
    assert differences.mean() < 1


def test_order_of_grouped_batches_is_random():
    batches = TrainingBatches(SIZE, GLOBAL_BATCH, lengths=LENGTHS).global_batches(0)
    means = LENGTHS[batches].mean(axis=1)
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.25


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["in order", "grouped"])
@pytest.mark.parametrize("num_replicas", [1, 2, 4, 7])
def test_evaluation_sees_each_sample_once_in_the_same_batches(num_replicas, lengths):
    ranks = [list(EvaluationBatches(SIZE, 5, num_replicas, rank, lengths)) for rank in range(num_replicas)]
    assert len({len(rank) for rank in ranks}) == 1
    assert {len(batch) for rank in ranks for batch in rank} == {5}
    assert sorted(draw for rank in ranks for batch in rank for draw in batch if draw >= 0) == list(range(SIZE))
    alone = {tuple(batch) for batch in EvaluationBatches(SIZE, 5, lengths=lengths)}
    full = {tuple(batch) for rank in ranks for batch in rank if min(batch) >= 0}
    assert full <= alone


def test_padding_stands_for_a_sample():
    assert sample_indices([0, 7, 15, -1, -4], 10).tolist() == [0, 7, 5, 0, 3]
    last = list(EvaluationBatches(3, 5, lengths=np.array([9, 2, 4])))[-1]
    assert last == [1, 2, 0, -2, -2]


@pytest.mark.parametrize(("longest", "length"), [(1, 8), (8, 8), (9, 16), (30, 32), (33, 34), (34, 34)])
def test_padding_to_a_multiple_stays_within_the_limit(longest, length):
    assert Padding(0, 8, 34, always=False).length(longest) == length
    assert Padding(0, 8, 34, always=True).length(longest) == 34
