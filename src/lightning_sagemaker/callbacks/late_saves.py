# SPDX-License-Identifier: Apache-2.0
"""Delays checkpoint callbacks that save at a batch's end until after the module's ``on_train_batch_end``.

Lightning calls the callbacks' hooks first. A checkpoint that is saved in them lacks changes of the module's
hook, such as an average of its weights, and a run that resumes from it does not repeat that hook.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lightning_sagemaker._compat.guard import TakenOver
from lightning_sagemaker._lightning import Callback

if TYPE_CHECKING:
    from lightning_sagemaker._compat.loops import LoopEvents
    from lightning_sagemaker._types import Trainer

_HOOK = "on_train_batch_end"


class LateSaves:
    """Delays the saves of a Trainer's checkpoint callbacks, until :meth:`release`.

    Args:
        trainer: The Trainer.
        events: Events of the Trainer's fit.

    """

    def __init__(self, trainer: Trainer, events: LoopEvents) -> None:
        self._events = events
        self._waiting: dict[int, Callable[[], None]] = {}
        self._taken = TakenOver()
        for number, callback in enumerate(trainer.checkpoint_callbacks):
            if getattr(type(callback), _HOOK) is not getattr(Callback, _HOOK):
                self._taken.take(callback, _HOOK, self._waits(number))
        events.after_module_batch_end.append(self._save)

    def _waits(self, number: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
        def make(save: Callable[..., None]) -> Callable[..., None]:
            def waits(*arguments: object) -> None:
                if self._events.is_trial:
                    save(*arguments)
                else:
                    self._waiting[number] = lambda: save(*arguments)

            return waits

        return make

    def _save(self) -> None:
        while self._waiting:
            self._waiting.pop(min(self._waiting))()

    def release(self) -> None:
        """Restore the callbacks, which then save when Lightning calls them."""
        self._taken.restore()
