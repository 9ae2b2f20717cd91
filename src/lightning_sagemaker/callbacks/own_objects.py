# SPDX-License-Identifier: Apache-2.0
"""Allows objects of the script's own classes in a Trainer's checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from lightning_sagemaker._compat.trainer import callbacks_of, datamodule_of
from lightning_sagemaker.checkpoint.own_globals import may_hold

if TYPE_CHECKING:
    from lightning_sagemaker._types import Trainer


def reading_own_objects(trainer: Trainer) -> AbstractContextManager[None]:
    """Context in which a checkpoint may contain objects of classes that occur in the module, data and callbacks."""
    return may_hold(lambda: _held_by(trainer))


def _held_by(trainer: Trainer) -> Iterator[object]:
    """Hyperparameters, attributes (a module may save some itself) and callback states."""
    for source in filter(None, (trainer.lightning_module, datamodule_of(trainer))):
        yield type(source.hparams)
        yield from source.hparams.values()
        yield from (value for name, value in vars(source).items() if not name.startswith("_"))
    yield from trainer.lightning_module.children()  # a loss or a metric may be a hyperparameter
    for callback in callbacks_of(trainer):
        with contextlib.suppress(Exception):  # it may have no state before its first use
            yield callback.state_dict()
