# SPDX-License-Identifier: Apache-2.0
"""Shows progress bars on the rank that currently is rank zero."""

from __future__ import annotations

import logging
from typing import Any

_log = logging.getLogger(__name__)


def is_bar(callback: Any) -> bool:
    """Whether a callback is a progress bar, Lightning's or another library's."""
    return any(kind.__name__ == "ProgressBar" for kind in type(callback).__mro__)


def show_bars(trainer: Any, shown: bool) -> None:
    """Start or stop showing this rank's progress bars, in the middle of an epoch.

    Args:
        trainer: The Trainer, with its current progress.
        shown: Whether this rank is rank zero now.

    """
    for bar in filter(is_bar, trainer.callbacks):
        if not shown:
            bar.teardown(trainer, trainer.lightning_module, "fit")
            bar.disable()
            continue
        bar.enable()
        try:
            bar.on_train_start(trainer, trainer.lightning_module)
            bar.on_train_epoch_start(trainer, trainer.lightning_module)
        except Exception as error:  # third-party bars may not support this; training must not fail for it
            bar.disable()
            _log.warning("%s is no longer shown: %s: %s", type(bar).__name__, type(error).__name__, error)
