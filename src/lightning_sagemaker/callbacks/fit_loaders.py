# SPDX-License-Identifier: Apache-2.0
"""The loaders of a fit: tracked from their first iteration on, and restored to the position in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Sized
from typing import TYPE_CHECKING

from torch.utils.data import DataLoader, IterableDataset

from lightning_sagemaker._compat.phase import Phase
from lightning_sagemaker._compat.trainer import counts
from lightning_sagemaker.callbacks.loader_limits import limit_of
from lightning_sagemaker.data.dealing import batch_size_of, is_counted, remaining, united
from lightning_sagemaker.data.epoch_end import pass_end
from lightning_sagemaker.data.evaluated import before_evaluation, put_before_evaluation
from lightning_sagemaker.data.position import Position, Watch, has_state
from lightning_sagemaker.data.run_late import length_of
from lightning_sagemaker.data.tracked import iterates_as_torch, release, watch

if TYPE_CHECKING:
    from torch import Tensor

    from lightning_sagemaker._types import CombinedLoader, DataFetcher, Trainer
    from lightning_sagemaker.callbacks.fit_entries import Facts, FitEntry, Positions, RankState


class FitLoaders:
    """The loaders of training and validation.

    Args:
        trainer: The Trainer.
        report: Called with a message about state that cannot be restored.

    Attributes:
        restored: Returns the ids of generators that are restored with the fit.

    """

    def __init__(self, trainer: Trainer, report: Callable[[str], None]) -> None:
        self._trainer, self._report = trainer, report
        self._training: list[Watch] = []
        self._validation: list[Watch] = []
        self._wanted_validation: list[Position | None] = []
        self._deferred = False
        self._dealt: dict[int, tuple[int, int]] = {}
        self._orders: list[int] = []
        self.restored: Callable[[], set[int]] = set

    def watch_training(self, combined: CombinedLoader) -> None:
        """Track the loaders of training, before they are iterated."""
        self._training = self._watch(combined)
        is_prefetched = any(length_of(watched.loader) is None for watched in self._training)
        for watched in self._training:
            watched.deferred, watched.is_prefetched = self._deferred, is_prefetched
            if (limit := limit_of(watched)) is not None:
                self._report(limit)

    def watch_validation(self, combined: CombinedLoader) -> None:
        """Track the loaders of validation, before they are iterated."""
        self._validation = self._watch(combined)
        training = (watched.capture.generators() for watched in self._training)
        self._seek_validation(self.restored().union(*training) if self._wanted_validation else ())

    def _watch(self, combined: CombinedLoader) -> list[Watch]:
        pairs = [watch(loader, self._report) for loader in combined.flattened]
        combined.flattened = [loader for loader, _ in pairs]
        return [watched for _, watched in pairs]

    def release(self) -> None:
        """Restore the loaders."""
        for watched in (*self._training, *self._validation):
            release(watched.loader)

    def begin_epoch(self) -> None:
        """Start counting, before an epoch's iterators are created."""
        self._dealt, self._orders = {}, []
        for watched in self._training:
            watched.begin_epoch()

    def defer(self, deferred: bool) -> None:
        """Delay iterations, which start workers, until the position is known."""
        self._deferred = deferred
        for watched in self._training:
            watched.deferred = deferred

    def positions(self, taken: int) -> Positions:
        """Positions of this rank."""
        training = [watched.position(taken) for watched in self._training]
        return {"training": training, "validation": [before_evaluation(watched) for watched in self._validation]}

    def read_again(self) -> set[int]:
        """Ids of the generators that this process draws from again when a resumed run re-reads up to its position."""
        found = (watched.capture.generators() for watched in self._training if _is_read_again(watched))
        return set[int]().union(*found)

    def facts(self, batches: int) -> Facts:
        """The facts that positions depend on: sizes, and the number of samples of the batches."""
        sizes = [batch_size_of(watched.loader) for watched in self._training]
        samples = [self._samples(watched, size, batches) for watched, size in zip(self._training, sizes, strict=True)]
        return {
            "world_size": self.place[0],
            "replicas": self._replicas["num_replicas"],
            "batch_sizes": sizes,
            "samples": samples,
            "ordered_by": self._ordered_by,
            "shuffled_by": [
                getattr(getattr(watched.loader, "sampler", None), "shuffled_by", None) for watched in self._training
            ],
            "lengths": [_length(watched.loader) for watched in self._training],
        }

    def _is_same_order(self, loaded: FitEntry) -> bool:
        own = self.facts(0)["shuffled_by"]
        return bool(loaded.get("shuffled_by", [None] * len(own)) == own)

    def _samples(self, watched: Watch, size: int | None, batches: int) -> int | None:
        """Samples of the epoch consumed by all ranks."""
        if size is None:
            return None
        done, after = self._dealt.get(id(watched), (0, 0))
        return done + (batches - after) * size * self._replicas["num_replicas"]

    @property
    def place(self) -> tuple[int, int]:
        """Number of ranks that have a part of the data, and this rank's index among them.

        With recovery in the job, a lost rank still has a part: another one trains on it.
        """
        if getattr(self._trainer.strategy, "recovers", False):
            return self._replicas["num_replicas"], self._replicas["rank"]
        return self._trainer.world_size, self._trainer.global_rank

    @property
    def _replicas(self) -> dict[str, int]:
        alone = {"num_replicas": 1, "rank": 0}
        found: dict[str, int] = getattr(self._trainer.strategy, "distributed_sampler_kwargs", alone)
        return found

    @property
    def _ordered_by(self) -> list[int]:
        own = [getattr(getattr(watched.loader, "sampler", None), "global_batch_size", 0) for watched in self._training]
        return self._orders or own

    def fits(self, loaded: FitEntry) -> bool:
        """Whether positions of a checkpoint are valid here; logs if they are of other data."""
        own = self.facts(0)
        if loaded["phase"] not in (Phase.EPOCH_END.value, Phase.BETWEEN.value):
            for then, now in zip(loaded.get("lengths", ()), own["lengths"], strict=False):
                if then != now:
                    self._report(
                        f"The training data has {now} samples, and had {then} when the checkpoint was saved within an epoch,"
                        " whose rest is that of another order: some samples are seen twice and others never. HINT: resume"
                        " with the same data; new data may come with a new epoch."
                    )
        if not self._is_same_order(loaded):
            return False
        return all(loaded[name] == own[name] for name in ("world_size", "batch_sizes")) and (
            loaded["ordered_by"] == own["ordered_by"] or any(_was_dealt(rank) for rank in loaded["ranks"])
        )

    def own_of(self, ranks: Sequence[RankState]) -> RankState:
        """This rank's state, or another one's if there were fewer ranks."""
        return ranks[self.place[1] % len(ranks)]

    def keep_deal(self, loaded: FitEntry, positions: Positions) -> None:
        """Continue counting from an epoch that was redistributed before."""
        for watched, position, samples, size in zip(
            self._training, positions["training"], loaded["samples"], loaded["batch_sizes"], strict=True
        ):
            if position is not None and position["dealt"] is not None:
                after = position["dealt"]["after"]
                done = samples - (position["yielded"] - after) * size * self._replicas["num_replicas"]
                self._dealt[id(watched)] = done, after
                self._orders = loaded["ordered_by"]

    def seek(self, positions: Positions, restart: bool) -> None:
        """Start the next iterations at these positions; at the start of an epoch if ``restart``."""
        self._deferred = False
        for watched, position in zip(self._training, positions["training"], strict=True):
            if position is not None and position["taken"] >= self._trainer.num_training_batches:
                position = {**position, "last": True}
            watched.seek(None if restart else position)
            if restart and position is not None:
                pass_end(watched, position)
        self._wanted_validation = positions["validation"]
        self._seek_validation()

    def _seek_validation(self, but: Collection[int] = ()) -> None:
        """Restore validation loaders that are created late, except for the generators ``but``, which were used meanwhile."""
        for watched, position in zip(self._validation, self._wanted_validation, strict=False):
            if position is not None:
                put_before_evaluation(watched, position, but)
        if self._validation:
            self._wanted_validation = []

    def count_cycles(self, batches: int, positions: Positions) -> None:
        """Set which loaders of the ``CombinedLoader`` are exhausted."""
        loaders = self._trainer.fit_loop._combined_loader
        assert loaders is not None
        iterator = loaders._iterator
        assert iterator is not None
        iterator._idx = batches
        if hasattr(iterator, "_consumed"):
            iterator._consumed = [
                position is not None and position["iteration"] > 1 for position in positions["training"]
            ]

    def deal(self, loaded: FitEntry, fetcher: DataFetcher | None) -> str:
        """Redistribute the rest of an epoch to another number of ranks, or in other batches.

        Returns:
            A log message about what is equal to an uninterrupted run.

        """
        self._deferred = False
        if fetcher is None or loaded["phase"] == Phase.BETWEEN:
            for watched in self._training:
                watched.seek(None)
            if fetcher is not None:
                iter(fetcher)
            return "Each epoch sees all samples once, in other batches."
        self._orders = loaded["ordered_by"]
        progress = self._trainer.fit_loop.epoch_loop.batch_progress
        rests = [self._rest(loaded, number) for number in range(len(self._training))]
        unknown = [
            type(watched.loader).__name__ for watched, rest in zip(self._training, rests, strict=True) if rest is None
        ]
        done = 0
        if not unknown:
            done = max(
                0, *(len(watched.loader) - len(rest or ()) for watched, rest in zip(self._training, rests, strict=True))
            )
        for number, (watched, rest) in enumerate(zip(self._training, rests, strict=True)):
            samples = loaded["samples"][number]
            if unknown or rest is None or samples is None:
                watched.seek(None)
            else:
                watched.seek_rest(rest, done, self._bits(loaded, number))
                self._dealt[id(watched)] = samples, done
        batch = counts(progress.current)
        batch.ready = batch.started = batch.processed = batch.completed = done
        progress.is_last_batch = not unknown and not any(rests)
        iter(fetcher)
        if unknown:
            return self._starts_over(unknown, len(loaded["ranks"]) != self.place[0])
        same = loaded["samples"][0] is not None and self._is_same_step(loaded)
        return (
            "Each step trains on the same samples, summed in another order."
            if same
            else "Each sample of the epoch is seen once, in other batches."
        )

    def _starts_over(self, unknown: Sequence[str], are_loaded: bool) -> str:
        if are_loaded and any(has_state(watched.loader) for watched in self._training):
            how = (
                "it goes on from its state of rank zero, with which each sample is seen once if it supports another number"
                " of ranks, and otherwise some twice and others never."
            )
        else:
            how = "its epoch starts over: some samples are seen twice."
        return (
            f"The position of {', '.join(unknown)} is unknown here, so {how} HINT: resume with the same loaders, number of"
            " ranks and batch size."
        )

    def step_ratio(self, loaded: FitEntry) -> float:
        """Samples per optimizer step of the run that wrote a checkpoint, divided by those of this run."""
        then, now = loaded["batch_sizes"][:1], self.facts(0)["batch_sizes"][:1]
        if not then or not then[0] or not now[0]:
            return 1.0
        replicas = loaded["replicas"] * loaded["accumulate"]
        return float(
            then[0] * replicas / (now[0] * self._replicas["num_replicas"] * self._trainer.accumulate_grad_batches)
        )

    def _is_same_step(self, loaded: FitEntry) -> bool:
        """Whether each step has the same samples."""
        return self.step_ratio(loaded) == 1 and all(is_counted(watched.loader) for watched in self._training)

    def _rest(self, loaded: FitEntry, number: int) -> Sequence[object] | None:
        # The script has other loaders now, or reads data from elsewhere, in another order.
        if len(loaded["samples"]) != len(self._training) or not self._is_same_order(loaded):
            return None
        loader, samples = self._training[number].loader, loaded["samples"][number]
        if samples is None or not hasattr(loader, "sampler"):
            return None
        if any((rank["loaders"]["training"][number] or {"iteration": 1})["iteration"] > 1 for rank in loaded["ranks"]):
            return None
        epoch = counts(self._trainer.fit_loop.epoch_progress.current).processed
        bits, ordered_by = self._bits(loaded, number), loaded["ordered_by"][number]
        return remaining(loader, self._replicas, epoch, samples, ordered_by, bits)

    def _bits(self, loaded: FitEntry, number: int) -> Tensor | None:
        return united([(rank["loaders"]["training"][number] or {}).get("bits") for rank in loaded["ranks"]])


def _length(loader: object) -> int | None:
    data = getattr(loader, "dataset", None)
    return len(data) if isinstance(data, Sized) and not isinstance(data, IterableDataset) else None


def _was_dealt(rank: RankState) -> bool:
    return any(position is not None and position["dealt"] is not None for position in rank["loaders"]["training"])


def _is_read_again(watched: Watch) -> bool:
    """Whether this process re-reads the batches up to a position, rather than the loader restoring it itself."""
    loader = watched.loader
    if has_state(loader):
        return True
    is_torchs = isinstance(loader, DataLoader) and iterates_as_torch(getattr(loader, "_kind", type(loader)))
    return not (is_torchs and not watched.is_iterable) and not getattr(loader, "num_workers", 0)
