# SPDX-License-Identifier: Apache-2.0
"""Restores the module's own weights in checkpoints within a validation, if hooks have swapped in others, such as averages.

Lightning saves after a validation, when these hooks have restored the weights. A stop, or the loss of a rank, does not wait
until then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import nn

from lightning_sagemaker._lightning import rank_zero_warn
from lightning_sagemaker.checkpoint.own_weights import OwnWeights, hooked, with_averages

if TYPE_CHECKING:
    from lightning_sagemaker._compat.loops import LoopEvents
    from lightning_sagemaker._types import StateDict, Trainer

_HOOKS = ("on_validation_model_eval", "on_validation_start", "on_validation_epoch_start")


class ExchangedWeights:
    """Keeps the module's own weights during a fit's validations, if hooks of the script may swap them.

    They are copied before the first validation, and before later ones if the previous one swapped them.

    Args:
        trainer: Trainer of the fit.
        events: Events of the fit.

    """

    def __init__(self, trainer: Trainer, events: LoopEvents) -> None:
        self._trainer = trainer
        self._own: OwnWeights | None = None
        self._keeps, self._has_looked, self._has_warned = True, False, False
        events.before_validation.append(self._begin)
        events.before_validation_step.append(self._look)
        events.after_validation.append(self._end)

    def _begin(self) -> None:
        if (others := hooked(self._trainer, _HOOKS)) is not None:
            self._own, self._has_looked = OwnWeights([self._trainer.lightning_module], others, self._keeps), False

    def _look(self) -> None:
        """Drop the copy, before a batch, if the weights were not swapped."""
        if self._own is None or self._has_looked:
            return
        self._has_looked, self._keeps = True, self._own.are_exchanged()
        if not self._keeps:
            self._own = OwnWeights([self._trainer.lightning_module], keeps=False)

    def _end(self) -> None:
        self._own = None

    def put_back(self) -> bool:
        """Restore the module's own weights, for a process that leaves the validation.

        Returns:
            Whether the module has its own weights now.

        """
        own, self._own = self._own, None
        if own is None or not own.are_exchanged():
            return True
        if own.are_kept:
            own.put_back()
        return own.are_kept

    def check_saved(self) -> None:
        """Warn, once, if the weights that are being saved are not the module's own."""
        if self._own is not None and not self._has_warned and self._own.are_exchanged():
            self._has_warned = True
            rank_zero_warn(
                "A checkpoint was saved before a hook put the weights back that it had exchanged for the validation: a run"
                " resumed from it trains on those that were in their place, unless a later hook puts them back. HINT:"
                " Lightning saves before the module's own on_validation_end; use on_validation_epoch_end, or a callback."
            )

    @property
    def callback_states(self) -> dict[str, StateDict]:
        """States, from before the validation, of callbacks whose hooks may swap weights, by their keys."""
        return {} if self._own is None else self._own.callback_states


class LoopWeights:
    """Keeps the weights of a custom loop at the end of an epoch's batches, as its script may swap them for an evaluation.

    They are copied if an earlier evaluation swapped them.
    """

    def __init__(self) -> None:
        self._own: OwnWeights | None = None
        self._keeps = False

    def take(self, state: Mapping[str, object]) -> None:
        """Record the weights of the modules and optimizers in ``state``, which are their own now."""
        modules = [value for value in state.values() if isinstance(value, nn.Module)]
        self._own = OwnWeights(modules, with_averages(state.values()), self._keeps)

    def can_go_back(self) -> bool:
        """Whether the own weights are available; if not, they are copied from the next time on, unless sharded."""
        if self._own is None:
            return True
        self._keeps = self._own.are_exchanged()
        return not self._keeps or self._own.are_kept

    def put_back(self) -> None:
        """Restore the weights, if they were swapped."""
        if self._own is not None and self._own.are_exchanged():
            self._own.put_back()

    def forget(self) -> None:
        """Drop the copy, after the evaluations."""
        self._own = None
