# SPDX-License-Identifier: Apache-2.0
"""A custom loop with Fabric that continues in the job when a rank dies.

The step in flight is discarded and its batches are yielded again. A rank that has adopted the shard of a lost rank first
yields the lost rank's batch, in an additional pass through the loop's body, and then its own, which makes the step.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist

from lightning_sagemaker._compat.fabric import inner_loader, is_set_up, observe, set_iterations
from lightning_sagemaker._lightning import rank_zero_info, rank_zero_warn
from lightning_sagemaker.callbacks.fabric_carried import NotCarried
from lightning_sagemaker.callbacks.fabric_loop import InterruptibleLoop
from lightning_sagemaker.collectives.agreement import of_all
from lightning_sagemaker.recovery import data_shards
from lightning_sagemaker.recovery.buffers import SharedBuffers
from lightning_sagemaker.recovery.coordinator_client import RecoveryError
from lightning_sagemaker.recovery.fabric_collectives import FabricCollectives
from lightning_sagemaker.recovery.fabric_held import FabricHeld, HeldLoop
from lightning_sagemaker.recovery.fabric_steps import FabricSteps, InJobStrategy
from lightning_sagemaker.recovery.rank_loss import end_of_job
from lightning_sagemaker.recovery.refused import CannotRecover, restarting_instead
from lightning_sagemaker.recovery.regroup import Regroup, Transfer
from lightning_sagemaker.recovery.seeds import seed_all, seed_batch

if TYPE_CHECKING:
    from lightning_sagemaker._types import Fabric, StateDict

T = TypeVar("T")
R = TypeVar("R")


class InJobLoop(InterruptibleLoop):
    """An :class:`~lightning_sagemaker.InterruptibleLoop` under ``lightning-sagemaker supervise``.

    The body of :meth:`batches` also runs for the batches of lost ranks, and again for those of a step in which a rank was
    lost. In these passes changes to ``state`` are reset, Fabric's collectives do nothing, and the optimizer steps in
    the pass of the rank's own batch only.

    Args:
        fabric: After ``launch()``, with a strategy that recovers in the job.
        dirpath: As in :class:`~lightning_sagemaker.InterruptibleLoop`.
        state: As in :class:`~lightning_sagemaker.InterruptibleLoop`.
        **options: As in :class:`~lightning_sagemaker.InterruptibleLoop`.

    Attributes:
        runs: Whether the loop is running: outside of it a lost rank ends the job.
        steps: The optimizer steps.
        collectives: Collectives of the loop and of the script.
        joins: Whether this rank is about to join others that are training.

    """

    def __init__(self, fabric: Fabric, dirpath: str | Path, state: StateDict, **options: Any) -> None:
        super().__init__(fabric, dirpath, state, **options)
        strategy = cast(InJobStrategy, fabric.strategy)
        assert strategy.rank is not None
        self._fabric, self._strategy, self._rank = fabric, strategy, strategy.rank
        self._client, self._world, self._number = self._rank.client, strategy.shards, self._rank.number
        self._buffers = SharedBuffers(lambda: strategy.modules)
        self._held = FabricHeld(strategy, state, self._state, self._buffers)
        self._regrouping = Regroup(self._rank, strategy.form, Transfer(self._held.all_of_it, self._take_over))
        strategy.loop = self
        self.runs = False
        self.steps = FabricSteps(self._rank, self._world, self._buffers)
        self.collectives = FabricCollectives(self, self._rank, strategy)
        self._has_state = not self._rank.joins
        self.joins = self._rank.joins
        self._seed = self._rank.seed
        self._loader: object = None
        self._iterators: dict[int, Iterator[object]] = {}
        self._is_left = self._has_warned = self._is_over = False
        self._looped = -1

    @property
    def within(self) -> bool:
        """Whether the body runs for a batch."""
        return self._within

    @property
    def discarded(self) -> bool:
        """Whether the current pass through the body is for a lost rank's batch, or of a step that is repeated."""
        return self.within and (self.steps.adopts is not None or self.steps.fails)

    # The loop

    def epochs(self, count: int | None = None) -> Generator[int, None, None]:
        """As in :class:`~lightning_sagemaker.InterruptibleLoop`; a replacement starts at the position of the others."""
        self._signals.install()
        self.runs = True
        try:
            self._begin()
            observe(NotCarried(self._place))
            for number in itertools.count(self.epoch) if count is None else range(self.epoch, count):
                self.epoch = number
                seed_all(self._seed, number, self._world)  # random numbers outside of batches are the same on all ranks
                yield number
                self._leave()
                self.check_left()
                if self._votes.saves:
                    self.save()
                self.batch, self._is_over = 0, False
                if self._votes.stops:
                    self.epoch += 1
                    self._stop()
            self.collectives.until_done(lambda: None)
            self._client.finish()
        finally:
            self.runs = False
            observe(None)
            self._release()

    def _batches(self, loader: Iterable[T], every: int) -> Generator[T, None, None]:
        """As in :class:`~lightning_sagemaker.InterruptibleLoop`; with passes for the batches of lost ranks."""
        inner: Any = inner_loader(loader)
        with restarting_instead(self._client, self._strategy.is_asked):
            data_shards.deal(inner, self._seed)
            if self._looped == self.epoch:
                raise CannotRecover("an epoch has a second loop over batches, which a replacement would not find")
        self._looped = self.epoch
        over = self._held.check_loaded(loader, self._world)
        self._is_over = over is not None
        data_shards.set_epoch(inner, self.epoch)
        set_iterations(loader, self.epoch + 1)
        self._loader, self.joins = loader, False
        self._iterators, count = {}, len(inner)
        self._held.take((self.epoch, self.batch, self.step), self._seed)
        if over is not None:
            self.batch = over
            self._end_loop()
            return
        begin = self.batch
        while self.batch < count:
            try:
                own = yield from self._passes(loader)
            except GeneratorExit:  # after a break
                if not self._is_left:
                    self._is_over = True
                    self._end_loop()
                raise
            if not own:
                self.epoch, self.batch, self.step = self._held.go_back()
                self.regroup()
                continue
            self.batch, self.step = self.batch + 1, self.step + 1
            if self.steps.stepped:
                self._held.take((self.epoch, self.batch, self.step), self._seed)
                if self.steps.changes:
                    self.regroup()
            if self.batch % every == 0:
                if self._votes.stops:
                    self._stop()
                if self._votes.saves:
                    self.save()
        if self.batch > begin and not self.steps.stepped and not self._has_warned:
            self._has_warned = True
            rank_zero_warn(
                "The last batches of this epoch were not followed by optimizer.step: if a rank is lost in the next epoch's"
                " first step, their gradients are dropped. HINT: step after the last batch too."
            )
        seed_all(self._seed, self.epoch, self._world + 1)

    def _end_loop(self) -> None:
        """Keep the state in which the script has left an epoch's loop: what follows is repeated."""
        self._held.take((self.epoch, self.batch, self.step), self._seed)
        seed_all(self._seed, self.epoch, self._world + 1)

    def _passes(self, loader: Iterable[T]) -> Generator[T, None, bool]:
        """The batches of this rank's shards, its own last; returns whether they were trained on."""
        for shard in (*self._adopted_shards, self._number):
            self._signals.is_alive()
            batch = self._next(loader, shard)
            adopts = shard if shard != self._number else None
            seed_batch(self._seed, self.epoch, self.batch, shard)
            unchanged = nullcontext() if adopts is None else self._held.unchanged_by(shard)
            apart = self.collectives.one_pass(adopts is not None)
            with self.steps.one_pass(adopts, self._strategy.parameters), unchanged, apart:
                self._within = True
                try:
                    yield batch
                except GeneratorExit:
                    self._is_left = self.discarded
                    self.batch, self.step = self.batch + 1, self.step + 1
                    raise
                finally:
                    self._within = False
            if self.steps.fails:
                return False
        return True

    def _next(self, loader: Iterable[T], shard: int) -> T:
        if shard not in self._iterators:
            seeds = self._seed, self.epoch
            self._iterators[shard] = data_shards.loader_of(inner_loader(loader), shard, self.batch, seeds)
        return self._on_device(loader, next(self._iterators[shard]))

    def _on_device(self, loader: Iterable[T], batch: object) -> T:
        moves = is_set_up(loader) and loader.device is not None
        return cast(T, self._fabric.to_device(batch) if moves else batch)

    def check_left(self) -> None:
        """Raise if the loop was left in the pass of a lost rank's batch."""
        if self._is_left:
            raise RecoveryError(
                "The loop was left in the pass of a lost rank's batch, before this rank's own. HINT: leave it 'if ... and"
                " not loop.discarded'."
            )

    def evaluation(self, loader: Iterable[T]) -> Generator[T, None, None]:
        """As in :class:`~lightning_sagemaker.InterruptibleLoop`; the shard of a rank that dies is evaluated by another."""
        inner: Any = inner_loader(loader)
        if self.joins or self.discarded:
            yield from itertools.islice(loader, 1)  # a mean over no batches might be an error
            return
        if not data_shards.is_distributed(inner):
            yield from loader
            return
        self.steps.share_buffers()
        done: list[int] = []
        todo = [self._number, *self._adopted_shards]
        while True:
            # Between accumulated batches each rank has the buffers of its own shard.
            accumulates = self.within and not self.steps.averaged
            with self._buffers.of_start() if accumulates else nullcontext():
                for shard in todo:
                    for batch in data_shards.loader_of(inner, shard, 0, (self._seed, data_shards.EVALUATION)):
                        self._signals.is_alive()
                        yield self._on_device(loader, batch)
            done = [*done, *todo]
            if self.collectives.is_within or self.collectives.vote(self.collectives.is_whole):
                return
            self.regroup(admits=False)
            todo = self.collectives.until_done(partial(self._missing, done))

    def _missing(self, done: list[int]) -> list[int]:
        """This rank's part of the shards that none of the remaining ranks has evaluated. Collective."""
        order = self._rank.order
        found = set(itertools.chain.from_iterable(of_all(done, len(order))))
        return sorted(set(range(self._world)) - found)[order.index(self._number) :: len(order)]

    def collective(self, operation: Callable[[], R]) -> R | None:
        """As in :class:`~lightning_sagemaker.InterruptibleLoop`; None in a pass that is discarded."""
        return self.collectives.of_script(operation, lambda: None, warning=None)

    def save(self) -> Path | None:
        """As in :class:`~lightning_sagemaker.InterruptibleLoop`."""
        if self._within:
            self._votes.saves = True
            return None
        path = self.collectives.until_done(
            lambda: self._held.write((self.epoch, self.batch, self.step), self._loader, self._world, self._is_over)
        )
        self._votes.saves, self._saved_at = False, time.monotonic()
        return path

    # Called by the strategy

    def average_gradients(self) -> bool:
        """Average the gradients, unless already averaged; returns False if the optimizer must not step."""
        is_due = self._fabric.is_global_zero and time.monotonic() - self._saved_at >= self._interval
        flags = torch.tensor([float(self._signals.arrived is not None), float(is_due)])
        if not self.steps.average(self._strategy.parameters, self.step, flags):
            if self.within:  # otherwise no end of a pass would undo this
                self.collectives.stay_apart()
            return False
        self._votes.take(self.steps.flags)
        return True

    # Quorums

    def _begin(self) -> None:
        if self._rank.joins:
            self.regroup()
        else:
            with self.collectives.running():
                self.epoch, self.batch, self.step = self._state.load()
                self._seed = of_all(torch.initial_seed() & 0xFFFFFFFF, self._fabric.world_size)[0]
        self._saved_at = time.monotonic()

    def regroup(self, *, admits: bool = True) -> None:
        """Form the next quorum. Collective."""
        begin = time.monotonic()
        end = self._regrouping(
            lambda: [self.step] if self._has_state else None,
            lambda: self.step,
            self._strategy.root_device,
            admits=admits,
        )
        self._iterators = {}
        self.steps.begin_quorum()
        rank_zero_info(
            f"{dist.get_world_size()} of {self._world} ranks continue after batch {self.step};"
            f" {time.monotonic() - begin:.2f} s since they stopped."
        )
        if end is not None:
            raise end_of_job(end, self._world, self.save())

    @property
    def _adopted_shards(self) -> list[int]:
        return data_shards.adopted(self._rank.order, self._world)[self._number]

    def _take_over(self, state: HeldLoop) -> None:
        """Continue from the state of another rank."""
        (self.epoch, self.batch, self.step), self._seed = self._held.take_over(state)
        self._has_state = True
