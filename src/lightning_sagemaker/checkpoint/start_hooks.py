# SPDX-License-Identifier: Apache-2.0
"""Calls the script's hooks of a start in a resumed run, without their overwriting the checkpoint's state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from lightning_sagemaker._compat.in_job import call_module
from lightning_sagemaker._compat.trainer import callbacks_of, loaded_callback_states
from lightning_sagemaker._lightning import Callback, pytorch_callbacks, rank_zero_info, rank_zero_warn
from lightning_sagemaker.checkpoint.own_weights import OwnWeights, given_back, hooked, is_hooked, kept_on_cpu
from lightning_sagemaker.checkpoint.pruned_weights import PrunedWeights

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lightning_sagemaker._compat.loops import LoopEvents
    from lightning_sagemaker._types import DataFetcher, StateDict, Trainer
    from lightning_sagemaker.checkpoint.fit_random import FitRandom
    from lightning_sagemaker.checkpoint.random_state import RandomState

_EPOCH = "on_train_epoch_start"
_HOOKS = ("on_fit_start", "on_sanity_check_start", "on_sanity_check_end", "on_train_start", _EPOCH)
_FINDERS = (pytorch_callbacks.LearningRateFinder, pytorch_callbacks.BatchSizeFinder)
"""Those train for a trial, which is over; what they found is in the checkpoint."""


class StartHooks:
    """Undoes changes of the hooks of a start to loaded state, as an uninterrupted run does not call them at this point.

    The hooks of an epoch's start are repeated, with its random states, as they may set state that is in no checkpoint: the
    epoch of a dataset, a loss. The checkpoint's state is restored after them.

    Args:
        trainer: Trainer of the fit.
        events: Events of the fit.
        generators: Random number generators of the fit.
        is_resumed: Whether the fit resumes from our own checkpoint. If the script passes it, hooks may change its state.

    Attributes:
        random: States of the random number generators at the epoch's start, if it has hooks.
        is_due: Whether the fit resumes within an epoch.
        joins: In a process that joins others, creates the context of an epoch's hooks.

    """

    def __init__(
        self, trainer: Trainer, events: LoopEvents, generators: FitRandom, is_resumed: Callable[[], bool]
    ) -> None:
        self._trainer, self._generators, self._is_resumed = trainer, generators, is_resumed
        self._pruned = PrunedWeights(trainer, events)
        self._own: OwnWeights | None = None
        self._callbacks: list[tuple[Callback, StateDict]] = []
        self._groups: list[list[StateDict]] = []
        self._optimizers: list[Optimizer] = []
        self.random: RandomState | None = None
        self.is_due = False
        self.joins: Callable[[], AbstractContextManager[None]] | None = None
        events.after_checkpoint_load.append(self._take)
        events.after_optimizers_load.append(self._take_groups)
        events.before_epoch.append(self._begin_epoch)
        events.after_loaders_request.append(lambda _: self._begin_epoch())  # training's are requested before the hooks

    def _take(self) -> None:
        trainer = self._trainer
        if trainer.ckpt_path is not None or not self._is_resumed() or hooked(trainer, _HOOKS) is None:
            return
        self._own = OwnWeights([trainer.lightning_module])
        states = loaded_callback_states(trainer)
        own = [one for one in callbacks_of(trainer) if is_hooked(one, _HOOKS) and one.state_key in states]
        self._callbacks = [(one, kept_on_cpu(states[one.state_key])) for one in own]

    def _take_groups(self) -> None:
        if self._own is not None:
            self._optimizers = list(self._trainer.optimizers)
            self._groups = [[_numbers(group) for group in one.param_groups] for one in self._optimizers]

    def _begin_epoch(self) -> None:
        self.random = self._generators.take() if hooked(self._trainer, (_EPOCH,)) is not None else None

    def enter(self, fetcher: DataFetcher | None, random: RandomState | None) -> None:
        """Start reading data, and call the hooks of the epoch's start, if they are due.

        Workers of the first epoch, which persistent ones outlive, have the dataset from before its hooks.

        Args:
            fetcher: Data fetcher of training; None if the next epoch creates its iterator.
            random: This rank's :attr:`random` when the checkpoint was saved; None if unknown.

        """
        loaders = self._trainer.fit_loop._combined_loader
        outlive = loaders is not None and any(getattr(one, "persistent_workers", False) for one in loaders.flattened)
        begins_first = outlive or self._trainer.current_epoch == 0
        self.random = random
        if self.joins is not None and hooked(self._trainer, (_EPOCH,)) is not None:
            self._own = OwnWeights([self._trainer.lightning_module])
            self._take_groups()
        if not begins_first:
            self._call_again()
        if fetcher is not None:
            iter(fetcher)
        self._call_again()
        self.joins = None
        self._undo()
        self._pruned.restore()

    def _call_again(self) -> None:
        is_due, self.is_due, trainer = self.is_due and self._own is not None, False, self._trainer
        if not is_due:
            return
        if self.random is not None:
            self._generators.put(self.random)
        with nullcontext() if self.joins is None else self.joins():
            for callback in callbacks_of(trainer):
                if is_hooked(callback, (_EPOCH,)) and not isinstance(callback, _FINDERS):
                    callback.on_train_epoch_start(trainer, trainer.lightning_module)
            if is_hooked(trainer.lightning_module, (_EPOCH,)):
                call_module(trainer, _EPOCH)

    def _undo(self) -> None:
        """After all hooks, restore weights, states of callbacks and settings of optimizers from the checkpoint."""
        own, self._own, callbacks, self._callbacks = self._own, None, self._callbacks, []
        groups, self._groups = self._groups, []
        loaded, self._optimizers = self._optimizers, []
        if own is None:
            return
        for before, now in zip(loaded, self._trainer.optimizers, strict=False):
            if before is not now:
                _take_state(now, before)
        changed = ["weights"] if own.are_exchanged() and own.are_kept else []
        own.load()
        if own.are_exchanged():
            rank_zero_warn(
                "A hook of the start, such as on_train_start, has changed the weights of the checkpoint that the run resumes"
                " from, and there is no copy of sharded ones. HINT: change them in configure_model."
            )
        for callback, state in callbacks:
            callback.load_state_dict(given_back(state))
        for optimizer, kept in zip(self._trainer.optimizers, groups, strict=False):
            for group, numbers in zip(optimizer.param_groups, kept, strict=False):
                changed += ["optimizer's settings"] if numbers != _numbers(group) else []
                group.update(numbers)
        if changed:
            rank_zero_info(
                f"A hook of the start, such as on_train_start, has changed the {' and the '.join(dict.fromkeys(changed))}:"
                " they are the checkpoint's again."
            )


def _take_state(optimizer: Optimizer, loaded: Optimizer) -> None:
    """Load the state into an optimizer with which an epoch's hook has replaced the one that had loaded it."""
    try:
        optimizer.load_state_dict(loaded.state_dict())
    except (KeyError, RuntimeError, ValueError) as error:
        rank_zero_warn(
            f"on_train_epoch_start has replaced an optimizer by {type(optimizer).__name__}, which does not take the"
            f" checkpoint's state ({type(error).__name__}: {error}) and starts without one. HINT: make the same optimizer in"
            " configure_optimizers when a run is resumed."
        )


def _numbers(group: Mapping[str, object]) -> StateDict:
    """Numeric settings that hooks change, such as learning rates; tensors are excluded, as ``==`` is elementwise."""
    return {name: value for name, value in group.items() if isinstance(value, (int, float, tuple))}
