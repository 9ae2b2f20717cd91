# SPDX-License-Identifier: Apache-2.0
"""A fit resumes on another number of ranks, or with other batches, than its checkpoint was saved with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_sagemaker._compat.connectors import restore_trainer_memory
from lightning_sagemaker._lightning import rank_zero_info
from lightning_sagemaker.callbacks.schedules import stretch_schedules
from lightning_sagemaker.checkpoint.metric_state import merged_metrics, restore_logged, restore_metrics
from lightning_sagemaker.checkpoint.module_flags import restore_module_flags
from lightning_sagemaker.checkpoint.stored_values import of_another_number

if TYPE_CHECKING:
    from lightning_sagemaker._types import DataFetcher, Trainer
    from lightning_sagemaker.callbacks.fit_entries import FitEntry
    from lightning_sagemaker.callbacks.fit_loaders import FitLoaders
    from lightning_sagemaker.checkpoint.attributes import PlainAttributes


def restore_from_other_ranks(
    trainer: Trainer, loaders: FitLoaders, attributes: PlainAttributes, loaded: FitEntry, fetcher: DataFetcher | None
) -> None:
    """Deal what the ranks of then had.

    Args:
        trainer: Which resumes.
        loaders: Its loaders.
        attributes: The plain attributes of its module and callbacks.
        loaded: The checkpoint's entry.
        fetcher: The resumed epoch's; None if the next one makes an iterator.

    """
    ranks, (size, rank) = loaded["ranks"], loaders.place
    here = loaders.facts(0)["batch_sizes"]
    rest = loaders.deal(loaded, fetcher), stretch_schedules(trainer, loaders.step_ratio(loaded))
    rank_zero_info(
        f"The checkpoint was saved on {len(ranks)} ranks with batches of {loaded['batch_sizes']}, accumulated"
        f" {loaded['accumulate']} times; now it is {size}, {here} and"
        f" {trainer.accumulate_grad_batches}. {' '.join(filter(None, rest))} Random numbers (dropout) differ."
    )
    metrics = merged_metrics(trainer, [one["metrics"] for one in ranks], rank, size)
    restore_metrics(trainer, metrics)
    restore_trainer_memory(trainer, ranks[0]["memory"])
    restore_module_flags(trainer.lightning_module, ranks[0].get("flags"))
    attributes.load(of_another_number([one.get("attributes", {}) for one in ranks], rank, size))
    restore_logged(trainer, metrics)
