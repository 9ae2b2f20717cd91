# SPDX-License-Identifier: Apache-2.0
"""``reload_dataloaders_every_n_epochs`` in a resumed run: loaders are requested as in the epoch in which the run last did.

Lightning requests them in the epoch in which it resumes, and counts from there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypedDict

from typing_extensions import NotRequired

from lightning_sagemaker._compat.guard import require
from lightning_sagemaker._compat.trainer import counts

if TYPE_CHECKING:
    from lightning_sagemaker._types import Trainer


class Reloads(TypedDict):
    """Epochs in which the loaders were last requested; -inf: never."""

    training: float
    validation: float
    has_validation: NotRequired[bool]
    """Whether the loop has validation loaders, which a sanity check also requests."""


def reloads_of(trainer: Trainer) -> Reloads:
    """Those of a fit."""
    fit = trainer.fit_loop
    require(fit, "_last_train_dl_reload_epoch")
    require(fit.epoch_loop.val_loop, "_last_val_dl_reload_epoch")
    loop = fit.epoch_loop.val_loop
    return {
        "training": fit._last_train_dl_reload_epoch,
        "validation": loop._last_val_dl_reload_epoch,
        "has_validation": loop._combined_loader is not None,
    }


def set_reloads(trainer: Trainer, reloads: Reloads) -> None:
    """Have the loaders requested again when it is time after these epochs."""
    trainer.fit_loop._last_train_dl_reload_epoch = reloads["training"]
    trainer.fit_loop.epoch_loop.val_loop._last_val_dl_reload_epoch = reloads["validation"]


def reload_as(trainer: Trainer, reloads: Reloads | None) -> None:
    """Request the loaders as in the epochs in which a run had last done so, if it does so more than once.

    Args:
        trainer: The one of the fit, whose progress has been loaded. Collective over its strategy's ranks.
        reloads: What the resumed run had; None, from a checkpoint of an older version, does nothing.

    """
    if reloads is None or not trainer.reload_dataloaders_every_n_epochs:  # type: ignore[attr-defined]
        return
    set_reloads(trainer, {"training": -math.inf, "validation": -math.inf})
    if math.isfinite(reloads["training"]):
        with _in_epoch(trainer, int(reloads["training"])):
            trainer.fit_loop.setup_data()
    if math.isfinite(reloads["validation"]):
        _request_validation(trainer, int(reloads["validation"]))
    set_reloads(trainer, reloads)


def request_as_others(trainer: Trainer, reloads: Reloads) -> None:
    """Request what the other ranks of a fit have requested before this one joined it.

    Args:
        trainer: The one of the fit, whose progress has been loaded.
        reloads: Those of another rank. One that has validation loaders will not wait for this rank to request them.

    """
    with without_collectives(trainer):
        reload_as(trainer, reloads)
        if reloads.get("has_validation") and trainer.fit_loop.epoch_loop.val_loop._combined_loader is None:
            _request_validation(trainer, 0)  # as a sanity check does
            set_reloads(trainer, reloads)


def _request_validation(trainer: Trainer, epoch: int) -> None:
    with _in_epoch(trainer, epoch):
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.setup_data()
        trainer.training = True


@contextmanager
def _in_epoch(trainer: Trainer, epoch: int) -> Iterator[None]:
    progress = counts(trainer.fit_loop.epoch_progress.current)
    now, progress.completed = progress.completed, epoch
    try:
        yield
    finally:
        progress.completed = now


@contextmanager
def without_collectives(trainer: Trainer) -> Iterator[None]:
    """What one rank does alone: others have agreed on the lengths of the loaders before."""
    own = vars(trainer.strategy)
    own.update(reduce=lambda tensor, *_, **__: tensor, barrier=lambda *_, **__: None)
    try:
        yield
    finally:
        del own["reduce"], own["barrier"]
