# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's weights and learning rates, after the hooks of a start: these may overwrite them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from lightning_sagemaker._lightning import rank_zero_info
from lightning_sagemaker.checkpoint.own_weights import OwnWeights, hooked

if TYPE_CHECKING:
    from lightning_sagemaker._compat.loops import LoopEvents
    from lightning_sagemaker._types import StateDict, Trainer

_HOOKS = ("on_fit_start", "on_sanity_check_start", "on_sanity_check_end", "on_train_start", "on_train_epoch_start")


class LoadedWeights:
    """A checkpoint's weights and learning rates, which hooks of the start may overwrite: ones that initialize a module.

    A run that was not interrupted does not call them there.

    Args:
        trainer: Whose fit it is.
        events: Events of the fit.
        is_resumed: Whether the fit goes on from a checkpoint of ours. If the script names it, hooks may mean to change it.

    """

    def __init__(self, trainer: Trainer, events: LoopEvents, is_resumed: Callable[[], bool]) -> None:
        self._trainer, self._is_resumed = trainer, is_resumed
        self._own: OwnWeights | None = None
        self._groups: list[list[StateDict]] = []
        events.checkpoint_is_loaded.append(self._take)
        events.optimizers_are_loaded.append(self._take_groups)

    def _take(self) -> None:
        if self._trainer.ckpt_path is None and self._is_resumed() and hooked(self._trainer, _HOOKS) is not None:
            self._own = OwnWeights([self._trainer.lightning_module])

    def _take_groups(self) -> None:
        if self._own is not None:
            self._groups = [[_numbers(group) for group in one.param_groups] for one in self._trainer.optimizers]

    def restore(self) -> None:
        """After these hooks."""
        own, self._own, groups, self._groups = self._own, None, self._groups, []
        if own is None:
            return
        changed = []
        if own.are_exchanged():
            changed.append("weights")
            own.load()
        for optimizer, kept in zip(self._trainer.optimizers, groups, strict=False):
            for group, numbers in zip(optimizer.param_groups, kept, strict=False):
                if numbers != _numbers(group):
                    changed.append("optimizer's settings")
                    group.update(numbers)
        if changed:
            rank_zero_info(
                f"A hook of the start, such as on_train_start, has changed the {' and the '.join(dict.fromkeys(changed))}:"
                " they are the checkpoint's again."
            )


def _numbers(group: Mapping[str, object]) -> StateDict:
    """What hooks set: rates, momenta. Others may be tensors, which cannot be compared so."""
    return {name: value for name, value in group.items() if isinstance(value, (int, float, tuple))}
