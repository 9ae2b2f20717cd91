# SPDX-License-Identifier: Apache-2.0
"""A loader for any Lightning project that goes on in the midst of an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset, DistributedSampler

from lightning_sagemaker.data.batches import Integers, TrainingBatches


class ResumableLoader(DataLoader[Any]):
    """Shuffled batches whose order follows from seed and step alone.

    A run that goes on from a checkpoint trains on the next samples, wherever it stopped, with the same or another number of
    processes, as long as the global batch is the same. Lightning's own sampler begins the epoch anew, so some samples are
    seen twice and others never. What does not fill a global batch at the end of a pass is left out.

    Args:
        dataset: With a length.
        trainer: Of the run; in ``train_dataloader`` that is ``self.trainer``.
        batch_size: Samples per process and forward pass.
        seed: Of the order.
        lengths: ``[size]``, of each sample, to put samples of similar length into a batch.
        **kwargs: Those of ``DataLoader`` that do not choose samples.

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
        batches = TrainingBatches(
            size,
            in_step,
            place["num_replicas"],
            place["rank"],
            accumulate,
            seed,
            lengths,
            steps_done=lambda: int(trainer.global_step),
        )
        super().__init__(dataset, batch_size=batch_size, sampler=_Samples(batches, size, batch_size), **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the place follows from the step. Saying so keeps Lightning from warning."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""


class _Samples(DistributedSampler[Any]):
    """One by one; a :class:`DistributedSampler`, because Lightning leaves those alone."""

    def __init__(self, batches: TrainingBatches, size: int, batch_size: int) -> None:
        super().__init__(range(size), 1, 0)  # type: ignore[arg-type]
        self._batches, self._size, self._batch_size = batches, size, batch_size

    def __len__(self) -> int:
        return len(self._batches) * self._batch_size

    def __iter__(self) -> Iterator[int]:
        for draws in self._batches:
            yield from (draw % self._size for draw in draws)
