# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from lightning_sagemaker.recipes.albert_mlm.draws import PADDING, EvaluationDraws, TrainingDraws

SIZE, GLOBAL_BATCH = 103, 12


def global_batches(num_replicas, accumulate, epoch=0, seed=0):
    """The set of draws in each optimizer step, as the ranks' data loaders would make them."""
    micro = GLOBAL_BATCH // num_replicas // accumulate
    ranks = []
    for rank in range(num_replicas):
        sampler = TrainingDraws(range(SIZE), GLOBAL_BATCH, num_replicas, rank, seed)
        sampler.set_epoch(epoch)
        draws = list(sampler)
        assert len(draws) == len(sampler)
        assert len(draws) % (micro * accumulate) == 0
        ranks.append(np.array(draws).reshape(-1, micro * accumulate))
    return [set(step.ravel()) for step in np.stack(ranks, axis=1)]


@pytest.mark.parametrize(("num_replicas", "accumulate"), [(2, 1), (4, 1), (1, 3), (2, 2), (4, 3)])
def test_global_batches_do_not_depend_on_the_processes(num_replicas, accumulate):
    expected = global_batches(1, 1)
    assert [len(step) for step in expected] == [GLOBAL_BATCH] * (SIZE // GLOBAL_BATCH)
    assert global_batches(num_replicas, accumulate) == expected


def test_epochs_and_seeds_shuffle_anew():
    first, second = global_batches(1, 1), global_batches(1, 1, epoch=1)
    assert all(SIZE <= draw < 2 * SIZE for step in second for draw in step)
    assert [{draw % SIZE for draw in step} for step in second] != first
    assert global_batches(1, 1, seed=1) != first


@pytest.mark.parametrize("num_replicas", [1, 2, 4, 7])
def test_evaluation_sees_each_sequence_once(num_replicas):
    ranks = [list(EvaluationDraws(range(SIZE), num_replicas, rank)) for rank in range(num_replicas)]
    assert len({len(rank) for rank in ranks}) == 1
    assert sorted(draw for rank in ranks for draw in rank if draw != PADDING) == list(range(SIZE))
