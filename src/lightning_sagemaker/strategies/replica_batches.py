# SPDX-License-Identifier: Apache-2.0
"""Exchange between the ranks of a pipeline's replicas: the batches before a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lightning_sagemaker._lightning import move_data_to_device, rank_zero_info
from lightning_sagemaker.parallel.degrees import ParallelDegrees
from lightning_sagemaker.parallel.groups import ParallelGroups
from lightning_sagemaker.parallel.inputs import Reads
from lightning_sagemaker.parallel.microbatches import Cut
from lightning_sagemaker.parallel.model import PipelinedModel
from lightning_sagemaker.parallel.structure import tensors_in

if TYPE_CHECKING:
    from lightning_sagemaker._lightning import DDPStrategy as Host
else:
    Host = object


_LOADERS = {
    "training_step": "train_dataloader",
    "validation_step": "val_dataloaders",
    "test_step": "test_dataloaders",
    "predict_step": "predict_dataloaders",
}


class ReplicaBatches(Host):
    """Mixin before a strategy whose module is partitioned at its first step: the batches of its steps."""

    degrees: ParallelDegrees
    groups: ParallelGroups
    _pipeline: PipelinedModel | None
    _whole_batches = False
    _cuts: dict[object, Cut]  # by loader
    _said_one_part = False

    def _use(self, name: str, args: Sequence[object]) -> str | None:
        """Key of steps whose first run determines the tensors that each stage reads; None if later steps may differ."""
        module = self.lightning_module
        assert module is not None
        return None if self._whole_batches or module.trainer.sanity_checking else f"{name}{args[1:]}"

    def _batch(self, batch: object, use: str | None) -> object:
        """The batch of the replica's first process: after the first step, only the tensors that were read. Collective."""
        shared = self.groups.batches.share(batch, use if self._pipeline else None)
        return batch if shared is batch else move_data_to_device(shared, self.root_device)

    def _microbatches(self, name: str, batch: object, args: Sequence[object]) -> tuple[list[object], list[float]]:
        """Split a batch into microbatches; returns them and their weights."""
        size = self._batch_size(name, args)
        cut = self._cuts.setdefault((name, args[1:], size), Cut(self.degrees.microbatches, size))
        parts, weights, reason = cut(batch)
        if reason:
            self._log_one_part(
                f"The batch of {name} runs as one microbatch: {reason}. HINT: a batch is split by the first dimension of its"
                " tensors, or by a method smp_slice of its object; what is not per-sample can be a buffer of the module."
            )
        return list(parts), list(weights)

    def _log_one_part(self, message: str) -> None:
        if not self._said_one_part:
            self._said_one_part = True
            rank_zero_info(message)

    def _even_parts(self, name: str, batch: object, args: Sequence[object]) -> list[object]:
        """Split a batch into equal microbatches, or keep it as one: evaluations log each with equal weight."""
        parts, weights = self._microbatches(name, batch, args)
        if len({*weights}) == 1:
            return parts
        self._log_one_part(f"Batches of {name} that cannot be split evenly, as the last may be, run as one microbatch.")
        return [batch]

    def _batch_size(self, name: str, args: Sequence[object]) -> int | None:
        """The batch size of a step's loader; None if it is unknown, or if a step has several loaders."""
        assert self.lightning_module is not None
        found = getattr(self.lightning_module.trainer, _LOADERS[name])
        if isinstance(found, list | tuple) and name != "training_step":
            number = args[1] if len(args) > 1 and isinstance(args[1], int) else 0
            found = found[number] if number < len(found) else None
        size = getattr(found, "batch_size", None) or getattr(getattr(found, "batch_sampler", None), "batch_size", None)
        return size if isinstance(size, int) else None


@contextmanager
def recording_reads(batch: object, parts: Sequence[object], groups: ParallelGroups, use: str | None) -> Iterator[Reads]:
    """Context for a step with the last shared batch, which records the tensors that this process reads.

    Its value records the tensors that the step returns and logs.

    Args:
        batch: The batch.
        parts: The microbatches of the batch.
        groups: Process groups of the parallel layout.
        use: Purpose of the batch; None to record nothing.

    """
    channel = groups.batches
    if use is None or channel.is_source or channel.knows_reads(use):
        yield Reads([])
        return
    count = len(tensors_in(batch))
    reads = Reads([tensors_in(part) for part in parts])
    with reads:
        yield reads
    # If parts have other numbers of tensors, all count as read. The last tensor holds the floating-point numbers.
    has_own = any(len(tensors_in(part)) != count for part in parts)
    channel.note_reads(use, {*(range(count) if has_own else reads.found), count})
