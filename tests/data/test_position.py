# SPDX-License-Identifier: Apache-2.0
"""Loaders of many kinds, brought to any place: they give what they would have given."""

import functools
import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)

from lightning_sagemaker.checkpoint.random_state import random_state, restore_random_state
from lightning_sagemaker.data.tracked import catch_up, release, watch

SIZE, BATCH = 23, 4


class Numbers(Dataset):
    """With a random number for each sample, of the global generators or of its own."""

    def __init__(self, own=False):
        self.random = np.random.default_rng(5) if own else None

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        drawn = (
            self.random.random() if self.random is not None else torch.rand(()) + np.random.random() + random.random()
        )
        return torch.tensor([float(index), float(drawn)])


class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        return iter(range(0 if info is None else info.id, SIZE, 1 if info is None else info.num_workers))


class Shuffled(Stream):
    """In an order that a worker draws."""

    def __iter__(self):
        own = list(super().__iter__())
        yield from (own[place] for place in torch.randperm(len(own)).tolist())


class Counts(Stream):
    """Draws by the number of the epoch, which it counts itself."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        info = torch.utils.data.get_worker_info()
        order = np.random.default_rng(self.epoch).permutation(SIZE)
        yield from (int(index) for index in (order if info is None else order[info.id :: info.num_workers]))


class Files(Stream):
    """Shuffles the names of its files again in each epoch."""

    def __init__(self):
        self.files, self.random = [f"{number:02}" for number in range(SIZE)], random.Random(4)

    def __iter__(self):
        self.random.shuffle(self.files)
        yield from map(int, self.files)


class FilesWithLength(Files):
    """Of which Lightning fetches no batch ahead."""

    def __len__(self):
        return SIZE


class Cached(Counts):
    """Holds the shard that it has read last: its number means nothing without it."""

    def __init__(self):
        super().__init__()
        self.number, self.shard = -1, None

    def __iter__(self):
        for number in range(2):
            if number != self.number:
                self.number, self.shard = number, np.arange(number * 10, number * 10 + 10)
            yield from self.shard.tolist()


class Own:
    """A loader of the script's own; its order is drawn with the first batch, or at once."""

    def __init__(self, at_once=False, length=True, draws=None):
        self.random, self.at_once, self.draws = np.random.default_rng(0), at_once, draws
        if length:
            self.__class__ = OwnWithLength

    def __iter__(self):
        return iter(list(self._batches())) if self.at_once else self._batches()

    def _batches(self):
        order = self.random.permutation(SIZE)
        for index in range(6):
            batch = torch.tensor(order[index * BATCH : (index + 1) * BATCH], dtype=torch.float)
            yield batch if self.draws is None else batch + self.draws()


class OwnWithLength(Own):
    def __len__(self):
        return 6


class WithDataset(Own):
    """As loaders of tensors that lie in memory."""

    def __init__(self):
        super().__init__()
        self.dataset = Numbers()


class InParts(DataLoader):
    """Collates parts of its batches by what it collates batches with."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, collate_fn=self._join, **options)

    def _join(self, samples):
        if not samples[0].dim():
            return torch.stack(samples) + torch.rand(())
        return torch.stack([self.collate_fn(list(part)) for part in zip(*samples, strict=True)], 1)


class InPlace(Sampler):
    """Shuffles a list of its own again in each epoch, by its own generator."""

    def __init__(self, size=SIZE):
        self.order, self.random, self.epochs = list(range(size)), random.Random(1), 0

    def __len__(self):
        return len(self.order)

    def __iter__(self):
        self.epochs += 1
        self.random.shuffle(self.order)
        yield from self.order


class AsItGoes(Sampler):
    def __len__(self):
        return SIZE

    def __iter__(self):
        for _ in range(SIZE):
            yield int(torch.randint(SIZE, ()))


def noisy(scale, samples):
    return torch.stack([torch.as_tensor(sample) * 1.0 for sample in samples]) + scale * torch.rand(())


KINDS = {
    "in order": lambda: DataLoader(Numbers(), BATCH),
    "shuffled": lambda: DataLoader(Numbers(), BATCH, shuffle=True),
    "drop last": lambda: DataLoader(Numbers(), BATCH, shuffle=True, drop_last=True),
    "a generator": lambda: DataLoader(Numbers(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(2)),
    "a generator, drop last": lambda: DataLoader(
        Numbers(), BATCH, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(2)
    ),
    "a generator, ahead": lambda: DataLoader(
        Numbers(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(2), num_workers=2
    ),
    "a dataset's generator": lambda: DataLoader(Numbers(own=True), BATCH, shuffle=True),
    "weighted": lambda: DataLoader(Numbers(), BATCH, sampler=WeightedRandomSampler([1.0] * SIZE, SIZE)),
    "in place": lambda: DataLoader(Numbers(), BATCH, sampler=InPlace()),
    "batches": lambda: DataLoader(Numbers(), batch_sampler=BatchSampler(RandomSampler(range(SIZE)), 3, False)),
    "no batches": lambda: DataLoader(Numbers(), batch_size=None, shuffle=True),
    "collate": lambda: DataLoader(Numbers(), BATCH, shuffle=True, collate_fn=functools.partial(noisy, 0.1)),
    "collates parts": lambda: InParts(Numbers(), BATCH, shuffle=True),
    "worker collates parts": lambda: InParts(Numbers(), BATCH, shuffle=True, num_workers=1),
    "1 worker": lambda: DataLoader(Numbers(), BATCH, shuffle=True, num_workers=1),
    "3 workers": lambda: DataLoader(Numbers(), BATCH, shuffle=True, num_workers=3),
    "workers' own": lambda: DataLoader(Numbers(own=True), BATCH, shuffle=True, num_workers=2),
    "persistent": lambda: DataLoader(Numbers(), BATCH, shuffle=True, num_workers=3, persistent_workers=True),
    "persistent stream": lambda: DataLoader(Shuffled(), BATCH, num_workers=2, persistent_workers=True),
    "stream": lambda: DataLoader(Stream(), BATCH),
    "stream of workers": lambda: DataLoader(Stream(), BATCH, num_workers=2),
    "stream that counts": lambda: DataLoader(Counts(), BATCH),
    "workers that count": lambda: DataLoader(Counts(), BATCH, num_workers=2, persistent_workers=True),
    "stream of files": lambda: DataLoader(Files(), BATCH),
    "stream with a length": lambda: DataLoader(FilesWithLength(), BATCH),
    "cached": lambda: DataLoader(Cached(), BATCH),
    "own": Own,
    "own, at once": lambda: Own(at_once=True),
    "own with a dataset": WithDataset,
    "own without length": lambda: Own(length=False),
    "own that draws": lambda: Own(draws=np.random.random),
    "a list": lambda: [torch.tensor([float(index)]) for index in range(6)],
}


def seed_everything(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def epochs(loader, watched, count):
    """Batches of some epochs, with a draw of training after each; positions and random numbers before each batch."""
    batches, places = [], []
    for epoch in range(count):
        watched.begin_epoch()
        for taken, batch in enumerate(loader, 1):
            drawn = float(torch.rand(()))
            batches.append((epoch, torch.as_tensor(batch).tolist(), drawn))
            places.append((epoch, taken, watched.position(taken), random_state()))
    return batches, places


_LONG = ("3 workers", "workers' own")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind in _LONG else ()) for kind in KINDS]
)
def test_a_loader_goes_on_from_any_place(kind):
    seed_everything(1)
    loader, watched = watch(KINDS[kind](), print)
    batches, places = epochs(loader, watched, 3)
    plain = KINDS[kind]()
    for number in range(0, len(places), 3):
        epoch, _, position, state = places[number]
        torch.manual_seed(99)
        loader, watched = watch(KINDS[kind](), print)
        watched.seek(position)
        iterator = iter(loader)
        restore_random_state(state)
        first = next(iterator, None)
        rest = []
        while first is not None:
            rest.append((epoch, torch.as_tensor(first).tolist(), float(torch.rand(()))))
            first = next(iterator, None)
        rest += [(epoch + 1 + later, *found) for later, *found in epochs(loader, watched, 2 - epoch)[0]]
        assert rest == batches[number + 1 :], number
    assert type(plain) is type(KINDS[kind]())


@pytest.mark.parametrize("kind", ["shuffled", "collate", "1 worker", "persistent", "persistent stream"])
@pytest.mark.parametrize("ahead", [1, 4])
def test_a_loader_goes_back_in_the_process_that_iterates_it(kind, ahead):
    """As after a rank was lost."""
    seed_everything(1)
    batches, _ = epochs(*watch(KINDS[kind](), print), 2)
    seed_everything(1)
    loader, watched = watch(KINDS[kind](), print)
    watched.begin_epoch()
    iterator, found = iter(loader), []
    for _ in range(2):
        found.append((0, next(iterator).tolist(), float(torch.rand(()))))
    position, state = watched.position(2), random_state()
    for _ in range(ahead):  # at four of them the epoch is over
        next(iterator, None)
    watched.seek(position)
    restore_random_state(state)
    iterator = iter(loader)
    restore_random_state(state)
    found += [(0, batch.tolist(), float(torch.rand(()))) for batch in iterator]
    assert found + [(1, *row[1:]) for row in epochs(loader, watched, 1)[0]] == batches


@pytest.mark.parametrize("kind", ["shuffled", "a generator", "in place", "collate", "1 worker", "stream", "a list"])
def test_a_place_is_known_before_its_first_batch(kind):
    """A run that is resumed may be interrupted again in the validation that it begins with."""
    torch.manual_seed(1)
    random.seed(1)
    loader, watched = watch(KINDS[kind](), print)
    batches, places = epochs(loader, watched, 1)
    _, taken, position, state = places[2]
    for _ in range(2):
        torch.manual_seed(99)
        loader, watched = watch(KINDS[kind](), print)
        watched.seek(position)
        iterator = iter(loader)
        position = watched.position(taken)
    restore_random_state(state)
    rest = [(0, torch.as_tensor(batch).tolist(), float(torch.rand(()))) for batch in iterator]
    assert rest == batches[3:]


@pytest.mark.parametrize("kind", ["shuffled", "a generator, drop last", "a generator, ahead", "in place", "weighted"])
def test_an_order_that_was_exhausted_draws_nothing_more(kind):
    """A ``RandomSampler`` draws from the loader's generator once more at its end, before an evaluation is stopped."""
    seed_everything(1)
    loader, watched = watch(KINDS[kind](), print)
    watched.begin_epoch()
    taken = len([*loader])
    position, state = watched.position(taken), random_state()
    batches, _ = epochs(loader, watched, 1)
    for _ in range(2):  # stopped there again
        loader, watched = watch(KINDS[kind](), print)
        watched.seek(position)
        assert [*loader] == []
        position = watched.position(taken)
    restore_random_state(state)
    assert epochs(loader, watched, 1)[0] == batches


class SaysItself:
    """A loader with a state and without a length: a batch is fetched ahead of the one that is trained on."""

    taken = 0

    def __iter__(self):
        while self.taken < 6:
            self.taken += 1
            yield self.taken
        self.taken = 0

    def state_dict(self):
        return {"taken": self.taken}

    def load_state_dict(self, state):
        self.taken = state["taken"]


@pytest.mark.parametrize("taken", [4, 5, 6])
def test_a_loader_that_says_itself_where_it_is_gives_the_last_batch_again(taken):
    """That it has been through is known before the last batch has been trained on."""
    loader, watched = watch(SaysItself(), print)
    watched.begin_epoch()
    assert list(loader) == [1, 2, 3, 4, 5, 6]
    position = watched.position(taken)
    loader, watched = watch(SaysItself(), print)
    watched.seek(position)
    assert list(loader) == [5, 6][max(0, taken - 4) :]
    assert list(loader) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("kind", ["persistent", "persistent stream"])
def test_workers_that_outlive_an_epoch_which_was_left_early(kind):
    """What they had fetched ahead is dropped, but they have drawn for it."""
    torch.manual_seed(1)

    def some(loader, watched, epochs):
        found = []
        for _ in range(epochs):
            watched.begin_epoch()
            found += [batch.tolist() for batch, _ in zip(loader, range(2), strict=False)]
        return found

    alone = some(*watch(KINDS[kind](), print), 4)
    torch.manual_seed(1)
    loader, watched = watch(KINDS[kind](), print)
    first = some(loader, watched, 2)
    position, state = watched.position(2), random_state()
    loader, watched = watch(KINDS[kind](), print)
    catch_up(watched, position)
    restore_random_state(state)
    assert first + some(loader, watched, 2) == alone


def test_a_watched_loader_gives_what_it_would_have_given():
    for kind, make in KINDS.items():
        found = []
        for watches in (False, True):
            torch.manual_seed(1)
            np.random.seed(1)
            random.seed(1)
            loader = watch(make(), print)[0] if watches else make()
            found.append(
                [(torch.as_tensor(batch).tolist(), float(torch.rand(()))) for _ in range(2) for batch in loader]
            )
        assert found[0] == found[1], kind


def test_a_loader_is_what_it_was_after_its_release():
    loader = DataLoader(Numbers(), BATCH)
    watch(loader, print)
    assert isinstance(loader, DataLoader)
    assert type(loader) is not DataLoader
    release(loader)
    assert type(loader) is DataLoader
    assert len(list(loader)) == len(loader) == 6


def test_an_order_that_is_drawn_while_it_is_read_is_named():
    said = []
    loader, _ = watch(DataLoader(Numbers(), BATCH, sampler=AsItGoes()), said.append)
    list(loader)
    assert len(said) == 1
    assert "AsItGoes draws from the global random number generators during iteration" in said[0]
    assert "HINT" in said[0]
    said.clear()
    for kind, make in KINDS.items():
        list(watch(make(), said.append)[0])
        assert not said, kind
