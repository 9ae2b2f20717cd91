# SPDX-License-Identifier: Apache-2.0
"""What a rank trains on in the place of another is what that one would have, by torch's own samplers."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset

from lightning_sagemaker.data.batches import EvaluationBatches, TrainingBatches
from lightning_sagemaker.recovery import shards
from lightning_sagemaker.recovery.member import RecoveryError

DATA = TensorDataset(torch.arange(103))


def loader_of(rank: int, world_size: int, shuffle: bool = True, **options: Any) -> DataLoader[Any]:
    sampler: DistributedSampler[Any] = DistributedSampler(DATA, world_size, rank, shuffle=shuffle, seed=5)
    sampler.set_epoch(3)
    return DataLoader(DATA, batch_size=4, sampler=sampler, **options)


def samples(batches: Any) -> list[list[int]]:
    return [batch[0].tolist() for batch in batches]


@pytest.mark.parametrize(("order", "expected"), [([0, 1, 2, 3], {}), ([2, 0], {2: [1], 0: [3]}), ([3], {3: [0, 1, 2]})])
def test_each_missing_rank_is_replaced_by_one(order, expected):
    found = shards.adopted(order, 4)
    assert {rank: taken for rank, taken in found.items() if taken} == expected
    assert sorted(chain(order, *found.values())) == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("begin", [0, 5])
def test_batches_of_another_rank_are_those_that_its_loader_gives(begin, workers):
    other = samples(loader_of(2, 3))[begin:]
    assert samples(shards.loader_of(loader_of(0, 3, num_workers=workers), 2, begin)) == other


def test_and_so_are_those_of_a_recipe():
    def sampler(rank: int) -> TrainingBatches:
        made = TrainingBatches(1000, 12, num_replicas=3, rank=rank, accumulate=2, seed=1)
        made.set_epoch(2)
        return made

    loader = DataLoader(list(range(2000 * 3)), sampler=sampler(0), batch_size=None, collate_fn=list)
    assert list(shards.batches_of(loader, 1, 7)) == list(sampler(1).iterate_from(7))


def test_evaluation_takes_each_shard_once():
    loader, mine = loader_of(0, 3, shuffle=False), [0]
    shards.evaluate_shards(loader, lambda: mine)
    shards.evaluate_shards(loader, lambda: mine)  # a second validation
    assert (samples(loader), len(loader)) == (samples(loader_of(0, 3, shuffle=False)), 9)
    mine = [0, 2]
    assert samples(loader) == [*samples(loader_of(0, 3, shuffle=False)), *samples(loader_of(2, 3, shuffle=False))]
    assert len(loader) == 18


def test_the_recipes_batches_of_another_shard_are_evaluated():
    sizes = list(range(103, 0, -1))
    alone = EvaluationBatches(103, 4, lengths=sizes)
    loader = DataLoader(DATA, sampler=EvaluationBatches(103, 4, 3, 1, lengths=sizes), batch_size=None)
    assert len(loader) == 9
    shards.evaluate_shards(loader, lambda: [1, 0, 2])
    assert len(loader) == 27
    found = [number for batch in loader.sampler for number in batch if number >= 0]
    assert sorted(found) == sorted(number for batch in alone for number in batch if number >= 0) == list(range(103))


def test_data_that_is_not_dealt_is_evaluated_by_all():
    loader = DataLoader(DATA, batch_size=4)
    shards.evaluate_shards(loader, lambda: [0, 1])
    assert len(loader) == 26
    assert sorted(chain(*samples(loader))) == list(range(103))


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(DATA, sampler=RandomSampler(DATA)),
        DataLoader(torch.utils.data.ChainDataset([])),
        [1, 2],
    ],
)
def test_an_order_that_nobody_else_knows_is_refused(loader):
    with pytest.raises(RecoveryError, match=r"recovery='in_job' was set.*HINT: give one DataLoader"):
        shards.check(loader)


def test_known_orders_are_taken():
    shards.check(loader_of(0, 2))
    shards.check(DataLoader(DATA, sampler=TrainingBatches(100, 4), batch_size=None))


def test_random_numbers_follow_from_seed_batch_and_shard():
    def draw(*place: int) -> tuple[float, ...]:
        shards.seed_batch(*place)
        return torch.rand(()).item(), random.random(), float(np.random.rand())

    first = draw(7, 3, 1)
    assert draw(7, 3, 1) == first
    others = [draw(8, 3, 1), draw(7, 4, 1), draw(7, 3, 2)]
    assert all(a != b for other in others for a, b in zip(first, other, strict=True))


def test_positions_of_another_rank_become_ones_own():
    captured = {"scalars": {"batch_sampler.sampler.rank": 0, "batch_sampler.sampler.seed": 5, "sampler.rank": 0}}
    positions = {"training": [{"birth": captured, "order": None, "taken": 3}, None], "validation": []}
    shards.as_shard(positions, 2)
    assert captured["scalars"] == {
        "batch_sampler.sampler.rank": 2,
        "batch_sampler.sampler.seed": 5,
        "sampler.rank": 2,
    }
