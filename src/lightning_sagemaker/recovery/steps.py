# SPDX-License-Identifier: Apache-2.0
"""An optimizer step over all shards: remaining ranks train on those of lost ranks, too."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from lightning_sagemaker._compat.fsdp_groups import sharded_parameters
from lightning_sagemaker._compat.in_job import call_module, call_strategy, closure_result, weigh_logged_at_end
from lightning_sagemaker.checkpoint.attributes import Held, PlainAttributes
from lightning_sagemaker.checkpoint.module_walk import ModuleWalk
from lightning_sagemaker.parallel.gradients import swap_gradients
from lightning_sagemaker.recovery import data_shards
from lightning_sagemaker.recovery.buffers import FIRST, SharedBuffers
from lightning_sagemaker.recovery.job_rank import JobRank
from lightning_sagemaker.recovery.overlapped import OverlappedMeans
from lightning_sagemaker.recovery.seeds import seed_batch, seeded_batch
from lightning_sagemaker.recovery.step_collectives import StepReductions, unequal


class Steps:
    """The steps of a fit.

    Args:
        trainer: The Trainer.
        modules: A walk over the trained module, repeated in each step.
        rank: This process as a rank of the job.
        world_size: Number of shards of the job.
        commit: Votes on a step whose gradients are reduced. Its arguments are whether this rank's are valid, and a function
            to run while the votes are collected, without collectives.

    """

    def __init__(
        self,
        trainer: Any,
        modules: ModuleWalk,
        rank: JobRank,
        world_size: int,
        commit: Callable[[bool, Callable[[], None]], None],
    ) -> None:
        self._trainer, self._shard, self._world_size, self.seed = trainer, rank.number, world_size, rank.seed
        self._commit, self._means = commit, OverlappedMeans(world_size, rank.replicas)
        self._replicas = rank.replicas
        self._modules = modules
        self._adopted: list[int] = []
        self._reduces_in_this_backward = self._has_missing_ranks = self._shards_are_unequal = False
        self._reductions = StepReductions()
        self._iterators: dict[int, Iterator[Any]] = {}
        self._epoch = -1
        self._batches: list[int] = []
        self._batch: Any = None
        self._buffers = SharedBuffers(lambda: [trainer.lightning_module])
        self._attributes = PlainAttributes(trainer, lambda: modules.recent()[0])
        self._start: Held = []
        self._first = FIRST
        self._evaluation = ExitStack()

    @property
    def own_shards(self) -> list[int]:
        """This rank's own shards, and those that it has adopted."""
        return [self._shard, *self._adopted]

    def seeded_batch(self, batch: object, number: int) -> object:
        """The indices of a batch of this rank's own shard, whose data loading is seeded by its position."""
        epoch = self._trainer.fit_loop.epoch_progress.current.processed
        return seeded_batch(batch, self.seed, epoch, number, self._shard)

    def begin_quorum(self, order: Sequence[int]) -> None:
        """Train on this rank's part of the shards from here on; accumulated gradients are dropped.

        Args:
            order: Ranks of the quorum.

        """
        self._adopted = data_shards.adopted(order, self._world_size)[self._shard]
        self._has_missing_ranks = len(order) < self._world_size
        self._shards_are_unequal = self._world_size % len(order) > 0
        self._reductions.drop()
        self._first = data_shards.rank_of(FIRST, order, self._world_size)
        self._iterators, self._batches = {}, []
        self._evaluation.close()
        self._means.abandon()
        self._reduces_in_this_backward = False

    def begin_batch(self, batch: Any, batch_idx: int) -> None:
        """Start a batch of this rank's own shard."""
        self._evaluation.close()
        self._batch = batch
        if not self._batches:
            self._buffers.begin_step()
            self._start = self._attributes.now() if self._adopted else []
        self._batches.append(batch_idx)
        self._seed(batch_idx, self._shard)

    def begin_validation(self) -> None:
        """Start a validation, with the buffers of the last step's end on all ranks."""
        if self._batches:
            self._evaluation.enter_context(self._buffers.of_start())

    def evaluation_step(self) -> AbstractContextManager[None]:
        """Context for a validation batch, in which collectives are refused while ranks have different numbers of batches."""
        return self._reductions.apart(keeps=False) if self._has_missing_ranks else nullcontext()

    @contextmanager
    def evaluation_end(self) -> Iterator[None]:
        """Context for the hooks after a validation's batches, in which logged means are over the shards."""
        if not self._shards_are_unequal:
            yield
            return
        with unequal():
            yield
        weigh_logged_at_end(self._trainer, len(self.own_shards))

    def reduce_logged(self, tensor: torch.Tensor, operation: object) -> torch.Tensor | None:
        """As :meth:`.step_collectives.StepReductions.reduce`."""
        return self._reductions.reduce(tensor, operation)

    def with_adopted(self, optimizer: Any, closure: Callable[[], Any]) -> Any:
        """Compute the mean of gradients over all shards. Collective.

        Args:
            optimizer: Optimizer of the step.
            closure: Lightning's closure, for the own shard's last batch; its result is returned.

        """
        adopted = self._train_adopted(optimizer) if self._adopted else {}
        self._means.begin(self._parameters, adopted)
        with self._reductions.own() if self._has_missing_ranks else nullcontext():
            result = closure()
        self.reduce()  # in case there was no loss to differentiate
        self._batches = []
        return result

    def reduce(self) -> bool:
        """Replace the gradients by their means after the step's last backward pass. Collective.

        Returns:
            Whether hooks that read gradients may be called: not after an adopted shard's backward pass.

        """
        if not self._means.is_under_way:
            return not self._reduces_in_this_backward
        is_valid = self._means.wait()
        buffers = self._buffers.of_first(self._first)

        def put() -> None:
            self._means.put_back()
            self._buffers.put(buffers)

        self._commit(is_valid, put)
        return True

    def release(self) -> None:
        """Release the hooks, at the end of the fit."""
        self._means.release()

    @property
    def _parameters(self) -> list[torch.nn.Parameter]:
        module = self._trainer.lightning_module
        found = self._modules.look()[1] if self._replicas is None else sharded_parameters(module)
        return [one for one in found if one.requires_grad]

    def _train_adopted(self, optimizer: Any) -> dict[torch.nn.Parameter, torch.Tensor]:
        """Gradients of the step's batches of adopted shards; the own shard's gradients are not changed."""
        parameters, found = self._parameters, dict[torch.nn.Parameter, torch.Tensor]()
        own = swap_gradients(parameters)
        for shard in self._adopted:
            with self._buffers.of_shard(shard), self._attributes.of_another_rank(self._start):
                for batch_idx in self._batches:
                    self._reduces_in_this_backward = batch_idx == self._batches[-1]
                    with self._reductions.apart(keeps=self._reduces_in_this_backward):
                        self._train(shard, batch_idx, optimizer)
            for parameter, gradient in zip(parameters, swap_gradients(parameters), strict=True):
                if gradient is not None:
                    found[parameter] = found[parameter].add_(gradient) if parameter in found else gradient
        self._reduces_in_this_backward = False
        swap_gradients(parameters, own)
        self._trainer._logger_connector.on_batch_start(self._batch)
        self._seed(self._batches[-1], self._shard)
        return found

    def _train(self, shard: int, batch_idx: int, optimizer: Any) -> None:
        trainer = self._trainer
        batch = trainer.precision_plugin.convert_input(next(self._iterator(shard)))
        batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
        batch = call_strategy(trainer, "batch_to_device", batch, dataloader_idx=0)
        trainer._logger_connector.on_batch_start(batch)
        self._seed(batch_idx, shard)
        arguments = trainer.fit_loop.epoch_loop._build_kwargs(OrderedDict(), batch, batch_idx)
        with trainer.precision_plugin.train_step_context(), torch.enable_grad():
            output = call_module(trainer, "training_step", *arguments.values())
        loss = closure_result(output, trainer.accumulate_grad_batches)
        if loss is not None:
            call_strategy(trainer, "backward", loss, optimizer)

    def _iterator(self, shard: int) -> Iterator[Any]:
        """A shard's batches of the current epoch, from the step's first batch on."""
        epoch = self._trainer.fit_loop.epoch_progress.current.processed
        if epoch != self._epoch:
            self._epoch, self._iterators = epoch, {}
        if shard not in self._iterators:
            (loader,) = self._trainer.fit_loop._combined_loader.flattened
            self._iterators[shard] = data_shards.loader_of(loader, shard, self._batches[0], (self.seed, epoch))
        return self._iterators[shard]

    def _seed(self, batch_idx: int, shard: int) -> None:
        epoch = self._trainer.fit_loop.epoch_progress.current.processed
        seed_batch(self.seed, epoch, batch_idx, shard)
