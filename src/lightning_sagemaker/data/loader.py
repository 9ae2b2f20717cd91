# SPDX-License-Identifier: Apache-2.0
"""A loader for any Lightning project whose order does not depend on the number of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset, DistributedSampler

from lightning_sagemaker.data.batches import Integers, TrainingBatches
from lightning_sagemaker.data.position import is_watched


class BegunLate(DataLoader[Any]):
    """A loader whose workers start when the first batch is requested, not when Lightning counts the batches.

    Lightning creates the first iterator before a checkpoint is loaded if a scheduler uses
    ``estimated_stepping_batches``. The position then follows from the Trainer's progress, so there is no state to save;
    the empty state keeps Lightning from warning that the loader could not be resumed.
    """

    iterates_as_torch = True

    def __iter__(self) -> Any:
        begin = super().__iter__
        return begin() if is_watched(self) or not self.num_workers else _begun_late(begin)

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""


class ResumableLoader(BegunLate):
    """Shuffled batches whose order depends on seed and epoch only.

    A run that is resumed trains on the rest of the epoch, wherever it stopped. With
    :class:`~lightning_sagemaker.AutoResume` it may have a different world size, batch size and accumulation: each
    sample is seen once in an epoch; if the global batch size is the same, each step trains on the same samples. The
    incomplete global batch at the end of an epoch is dropped.

    Args:
        dataset: Map-style dataset, with a length.
        trainer: Trainer of the run; in ``train_dataloader`` that is ``self.trainer``.
        batch_size: Samples per process and forward pass.
        seed: Seed of the order.
        lengths: Length of each sample, ``[size]``, to put samples of similar length into a batch.
        **kwargs: Arguments of ``DataLoader`` that do not select samples.

    Raises:
        ValueError: If the data does not fill a global batch.

    """

    def __init__(
        self,
        dataset: Dataset[Any],
        trainer: Any,
        batch_size: int,
        seed: int = 0,
        lengths: Integers | None = None,
        **kwargs: Any,
    ) -> None:
        place = getattr(trainer.strategy, "distributed_sampler_kwargs", {"num_replicas": 1, "rank": 0})
        accumulate = trainer.accumulate_grad_batches
        size, in_step = len(dataset), batch_size * place["num_replicas"] * accumulate  # type: ignore[arg-type]
        if size < in_step:
            raise ValueError(
                f"there are {size} samples, but a step takes {in_step}: batch_size={batch_size} on"
                f" {place['num_replicas']} processes, {accumulate} times. HINT: lower batch_size."
            )
        batches = TrainingBatches(size, in_step, place["num_replicas"], place["rank"], accumulate, seed, lengths)
        batches.batches_done = batches_done(self, trainer)
        super().__init__(dataset, batch_size=batch_size, sampler=_Samples(batches, size, batch_size), **kwargs)


def batches_done(loader: Any, trainer: Any) -> Callable[[], int]:
    """Returns the number of completed batches of a Trainer's epoch, unless AutoResume skips them."""

    def done() -> int:
        return (
            0
            if trainer is None or is_watched(loader)
            else int(trainer.fit_loop.epoch_loop.batch_progress.current.ready)
        )

    return done


class _Samples(DistributedSampler[Any]):
    """Single samples; a :class:`DistributedSampler`, because Lightning keeps those unchanged."""

    def __init__(self, batches: TrainingBatches, size: int, batch_size: int) -> None:
        super().__init__(range(size), 1, 0)  # type: ignore[arg-type]
        self._batches, self._size, self._batch_size = batches, size, batch_size

    def __len__(self) -> int:
        return len(self._batches) * self._batch_size

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; called by Lightning."""
        super().set_epoch(epoch)
        self._batches.set_epoch(epoch)

    @property
    def samples_per_batch(self) -> int:
        """Samples of one process in a micro-batch."""
        return self._batch_size

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step over all processes."""
        return self._batches.global_batch_size

    def remaining(self, done: int, global_batch_size: int) -> list[list[int]]:
        """This process's batches of the rest of the epoch; see :meth:`TrainingBatches.remaining`."""
        return [[draw % self._size for draw in batch] for batch in self._batches.remaining(done, global_batch_size)]

    def __iter__(self) -> Iterator[int]:
        for draws in self._batches:
            yield from (draw % self._size for draw in draws)


def _begun_late(begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    yield from begin()
