# SPDX-License-Identifier: Apache-2.0
"""Resumes a fit with another number of ranks, or other batches, than its checkpoint was saved with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_sagemaker._compat.trainer_memory import restore_trainer_memory
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
    """Distribute the states of the earlier ranks to the current ones.

    Args:
        trainer: The Trainer that resumes.
        loaders: Loaders of the fit.
        attributes: Plain attributes of the module and callbacks.
        loaded: The checkpoint's entry.
        fetcher: Data fetcher of the resumed epoch; None if the next epoch creates an iterator.

    """
    ranks, (size, rank) = loaded["ranks"], loaders.place
    here = loaders.facts(0)["batch_sizes"]
    rest = loaders.deal(loaded, fetcher), stretch_schedules(trainer, loaders.step_ratio(loaded))
    rank_zero_info(
        f"The checkpoint was saved on {len(ranks)} ranks with batches of {loaded['batch_sizes']}, accumulated"
        f" {loaded['accumulate']} times; now it is {size}, {here} and {trainer.accumulate_grad_batches}."
        f" {' '.join(filter(None, rest))} Random numbers (dropout) differ."
    )
    metrics = merged_metrics(trainer, [one["metrics"] for one in ranks], rank, size)
    restore_metrics(trainer, metrics)
    restore_trainer_memory(trainer, ranks[0]["memory"])
    restore_module_flags(trainer.lightning_module, ranks[0].get("flags"))
    attributes.load(of_another_number([one.get("attributes", {}) for one in ranks], rank, size))
    restore_logged(trainer, metrics)
