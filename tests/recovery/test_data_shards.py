# SPDX-License-Identifier: Apache-2.0
"""What a rank trains on in the place of another is what that one would have, by torch's own samplers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

from lightning_sagemaker.data.batches import EvaluationBatches, TrainingBatches
from lightning_sagemaker.data.captured import Capture
from lightning_sagemaker.data.tracked import release, watch
from lightning_sagemaker.recovery import data_shards
from lightning_sagemaker.recovery.coordinator_client import RecoveryError
from lightning_sagemaker.recovery.seeds import seed_batch, seeded_batch

DATA = TensorDataset(torch.arange(103))


def loader_of(rank: int, world_size: int, shuffle: bool = True, **options: Any) -> DataLoader[Any]:
    sampler: DistributedSampler[Any] = DistributedSampler(DATA, world_size, rank, shuffle=shuffle, seed=5)
    sampler.set_epoch(3)
    return DataLoader(DATA, batch_size=4, sampler=sampler, **options)


def samples(batches: Any) -> list[list[int]]:
    return [batch[0].tolist() for batch in batches]


@pytest.mark.parametrize(("order", "expected"), [([0, 1, 2, 3], {}), ([2, 0], {2: [1], 0: [3]}), ([3], {3: [0, 1, 2]})])
def test_each_missing_rank_is_replaced_by_one(order, expected):
    found = data_shards.adopted(order, 4)
    assert {rank: taken for rank, taken in found.items() if taken} == expected
    assert sorted(chain(order, *found.values())) == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("begin", [0, 5])
def test_batches_of_another_rank_are_those_that_its_loader_gives(begin, workers):
    other = samples(loader_of(2, 3))[begin:]
    assert samples(data_shards.loader_of(loader_of(0, 3, num_workers=workers), 2, begin, (0, 0))) == other


class Noisy(torch.utils.data.Dataset[Any]):
    """Draws from all three generators, as augmentations do."""

    def __len__(self) -> int:
        return 103

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, torch.rand(()), np.random.rand(), random.random()])


def masked(items: list[Any]) -> Any:
    """Draws for a batch, as a collator of language models does."""
    return torch.stack(items), torch.rand(4)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}])
def test_what_data_draws_is_the_same_whichever_rank_loads_it(workers):
    def sampler(rank: int) -> DistributedSampler[Any]:
        return DistributedSampler(DATA, 3, rank, seed=5)

    own = DataLoader(Noisy(), 4, sampler=sampler(2), collate_fn=masked, **workers)
    other = DataLoader(Noisy(), 4, sampler=sampler(0), collate_fn=masked)
    loader, watched = watch(own, print)
    watched.mark = lambda batch, number: seeded_batch(batch, 7, 1, number, 2)
    found = list(loader)
    adopted = list(data_shards.loader_of(other, 2, 5, (7, 1)))
    assert len(adopted) == len(found) - 5
    for (samples_of_own, draws_of_own), (samples_of_other, draws) in zip(found[5:], adopted, strict=True):
        torch.testing.assert_close(samples_of_own, samples_of_other, rtol=0, atol=0)
        torch.testing.assert_close(draws_of_own, draws, rtol=0, atol=0)
    assert len({tuple(draws.tolist()) for _, draws in found}) == len(found)
    evaluation = [DataLoader(Noisy(), 4, sampler=sampler(rank), collate_fn=masked, **workers) for rank in (0, 2)]
    data_shards.evaluate_shards(evaluation[0], lambda: [0, 2], 7)
    data_shards.evaluate_shards(evaluation[1], lambda: [2], 7)
    both = [[batch.tolist() for batch, _ in one] for one in evaluation]
    assert both[0][9:] == both[1]
    release(loader)


def test_and_so_are_those_of_a_recipe():
    def sampler(rank: int) -> TrainingBatches:
        made = TrainingBatches(1000, 12, num_replicas=3, rank=rank, accumulate=2, seed=1)
        made.set_epoch(2)
        return made

    loader = DataLoader(list(range(2000 * 3)), sampler=sampler(0), batch_size=None, collate_fn=list)
    assert list(data_shards.batches_of(loader, 1, 7)) == list(sampler(1).iterate_from(7))


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_evaluation_takes_each_shard_once(workers):
    loader, mine = loader_of(0, 3, shuffle=False, **workers), [0]
    samples(loader)  # as in a sanity check
    data_shards.evaluate_shards(loader, lambda: mine, 0)
    data_shards.evaluate_shards(loader, lambda: mine, 0)  # a second validation
    assert (samples(loader), len(loader)) == (samples(loader_of(0, 3, shuffle=False)), 9)
    mine = [0, 2]
    assert samples(loader) == [*samples(loader_of(0, 3, shuffle=False)), *samples(loader_of(2, 3, shuffle=False))]
    assert len(loader) == 18


@pytest.mark.parametrize(("limit", "expected"), [(1, 1), (4, 4), (100, 9), (1.0, 9), (0.5, 4)])
def test_a_limit_holds_for_each_shard(limit, expected):
    loader, mine = loader_of(0, 3, shuffle=False), [0, 2]
    assert data_shards.evaluate_shards(loader, lambda: mine, 0, limit)
    parts = [samples(loader_of(shard, 3, shuffle=False))[:expected] for shard in mine]
    assert samples(loader) == [*parts[0], *parts[1]]
    assert len(loader) == 2 * expected


def test_the_recipes_batches_of_another_shard_are_evaluated():
    sizes = list(range(103, 0, -1))
    alone = EvaluationBatches(103, 4, lengths=sizes)
    loader = DataLoader(DATA, sampler=EvaluationBatches(103, 4, 3, 1, lengths=sizes), batch_size=None)
    assert len(loader) == 9
    data_shards.evaluate_shards(loader, lambda: [1, 0, 2], 0)
    assert len(loader) == 27
    found = [number for batch in loader.sampler for number in batch if number >= 0]
    assert sorted(found) == sorted(number for batch in alone for number in batch if number >= 0) == list(range(103))


def test_data_that_is_not_dealt_is_evaluated_by_all():
    loader = DataLoader(DATA, batch_size=4)
    data_shards.evaluate_shards(loader, lambda: [0, 1], 0)
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
    with pytest.raises(RecoveryError, match=r"the training data comes from a .*unlike those of a DataLoader"):
        data_shards.deal(loader, 0)


def test_known_orders_are_taken():
    data_shards.deal(loader_of(0, 2), 0)
    data_shards.deal(DataLoader(DATA, sampler=TrainingBatches(100, 4), batch_size=None), 0)


class Shuffled(Sampler[int]):
    """As scripts write them: an order of Python's numbers, another in each epoch."""

    def __init__(self, size: int) -> None:
        self.order = list(range(size))

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[int]:
        random.shuffle(self.order)
        return iter(list(self.order))


@pytest.mark.parametrize("make", [lambda: WeightedRandomSampler([1.0, 2.0] * 51 + [3.0], 103), lambda: Shuffled(103)])
def test_ranks_draw_one_order_of_a_sampler_of_the_scripts_own(make):
    loaders = []
    for rank in range(3):
        wrapper = DistributedSamplerWrapper(make(), num_replicas=3, rank=rank, shuffle=True, seed=5)
        loaders.append(DataLoader(DATA, batch_size=4, sampler=wrapper))
        data_shards.deal(loaders[-1], 7)
        data_shards.deal(loaders[-1], 7)  # loaders are set up again
    seen = []
    for epoch in (0, 1):
        for loader in loaders:
            loader.sampler.set_epoch(epoch)
            torch.manual_seed(random.randrange(1000))  # training draws other numbers on each rank
        numbers = torch.get_rng_state(), random.getstate()
        own = [list(loader.batch_sampler) for loader in loaders]
        assert torch.equal(torch.get_rng_state(), numbers[0])
        assert random.getstate() == numbers[1]
        for other in range(3):
            assert [list(data_shards.batches_of(loader, other, 2)) for loader in loaders] == [own[other][2:]] * 3
        drawn = list(loaders[0].sampler.dataset)[:103]
        dealt, whole = Counter(chain.from_iterable(chain(*own))), Counter(drawn)
        assert not whole - dealt
        assert (dealt - whole).total() == 2  # 103 samples are made 105, for three ranks
        seen.append(drawn)
    assert seen[0] != seen[1]


def test_random_numbers_follow_from_seed_batch_and_shard():
    def draw(*place: int) -> tuple[float, ...]:
        seed_batch(*place)
        return torch.rand(()).item(), random.random(), float(np.random.rand())

    first = draw(7, 0, 3, 1)
    assert draw(7, 0, 3, 1) == first
    others = [draw(8, 0, 3, 1), draw(7, 1, 3, 1), draw(7, 0, 4, 1), draw(7, 0, 3, 2)]
    assert all(a != b for other in others for a, b in zip(first, other, strict=True))


def test_positions_of_another_rank_become_ones_own():
    captured = {"scalars": {"batch_sampler.sampler.rank": 0, "batch_sampler.sampler.seed": 5, "sampler.rank": 0}}
    positions = {"training": [{"birth": captured, "order": None, "taken": 3}, None], "validation": []}
    data_shards.as_shard(positions, 2)
    assert captured["scalars"] == {
        "batch_sampler.sampler.rank": 2,
        "batch_sampler.sampler.seed": 5,
        "sampler.rank": 2,
    }


def test_the_trainings_state_is_no_part_of_an_evaluations_order():
    """The function that returns the shards belongs to an object that has the current batch, on whatever device."""

    class Steps:
        def __init__(self) -> None:
            self.batch, self.counter = torch.arange(8), 3

        def shards(self) -> list[int]:
            return [0]

    loader, steps = loader_of(0, 2, shuffle=False), Steps()
    data_shards.evaluate_shards(loader, steps.shards, 0)
    capture = Capture(loader)
    found = capture.take()
    steps.batch, steps.counter = torch.arange(4), 4
    assert capture.take()["lists"] == {}
    capture.put_objects(found)
    assert (len(steps.batch), steps.counter) == (4, 4)
