# SPDX-License-Identifier: Apache-2.0
"""Each rank's saved state of the last committed step, to resume from.

Weights and optimizers stay in place. Everything else that changes is copied: the loops' progress, random states,
metrics, callbacks, schedulers, the data position. It is restored in the same way as a job resumes from a checkpoint
(:class:`~lightning_sagemaker.callbacks.fit_state.FitState`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, cast

from lightning_sagemaker._compat.in_job import end_batch_hooks, end_batch_saves, forget_interruption
from lightning_sagemaker._compat.param_groups import group_options, set_group_options
from lightning_sagemaker._compat.plain_copy import plain_copy
from lightning_sagemaker._compat.reloads import request_as_others
from lightning_sagemaker.callbacks.fit_entries import FitEntry, RankState
from lightning_sagemaker.callbacks.fit_state import FitState
from lightning_sagemaker.checkpoint.attributes import Held
from lightning_sagemaker.checkpoint.metric_state import of_lost_rank
from lightning_sagemaker.checkpoint.records import package_of
from lightning_sagemaker.recovery import data_shards
from lightning_sagemaker.recovery.bars import is_bar
from lightning_sagemaker.recovery.job_rank import JobRank
from lightning_sagemaker.recovery.local_shards import decode, decode_states, encode
from lightning_sagemaker.recovery.refused import CannotRecover
from lightning_sagemaker.recovery.steps import Steps

_State = dict[str, Any]
_COUNTER = "_enable_version_counter"
"""Attribute of ModelCheckpoint: whether existing files are versioned, which is decided on all ranks together."""
_PACKAGES = ("lightning", "pytorch_lightning", "lightning_sagemaker")


class Moment(IntEnum):
    """The point within a step at which a state is saved, in chronological order."""

    BATCH_END = 1
    """Before the hooks of a batch's end, which may wait for other ranks."""
    SAVES = 2
    """After the module's hook, before checkpoints are saved."""
    HOOKS = 3
    """After these hooks, before a validation."""
    STEP = 4
    """After a batch and everything that follows it."""
    EPOCH = 5
    """Before an epoch."""


class HeldState:
    """The saved state of one fit.

    Args:
        trainer: The Trainer.
        fit_state: The fit's state that is not in Lightning's checkpoints.
        steps: The steps of the fit.
        rank: This process as a rank of the job. With replicas of sharded models, weights and optimizer states are not in
            the result of :meth:`all_of_it`.

    Attributes:
        is_current: Whether the weights are still those of the state; False from a step to the next :meth:`take`.

    """

    def __init__(self, trainer: Any, fit_state: FitState, steps: Steps, rank: JobRank) -> None:
        self._trainer, self.fit_state, self._steps = trainer, fit_state, steps
        self._shard, self._replicas = rank.number, rank.replicas
        self.attributes = fit_state.attributes
        self._held: _State | None = None
        self._plain: Held = []
        self._at: list[int] = []
        self.is_current = False
        self._counting: list[Any] = []
        self._repeats = False

    @property
    def at(self) -> list[int] | None:
        """The training position of the state, to be compared across ranks; None if there is none."""
        return self._at if self.is_current else None

    def take(self, moment: Moment, hooks: tuple[Any, ...] | None) -> None:
        """Save the current state.

        Args:
            moment: The point within the step.
            hooks: Arguments of ``on_train_batch_end``, if its hooks are to be called again.

        """
        if self._repeats:  # already saved: a repeated step has the same state
            return
        trainer = self._trainer
        # Checkpoints of a repeated step, also its validation's, keep their names; later ones are saved for the first time.
        while self._counting and (moment >= Moment.STEP or trainer.global_step > self._at[0]):
            self._counting.pop()._enable_version_counter = True
        self._held = {
            **self.fit_state.hold(looks=moment is Moment.EPOCH),  # within an epoch the step has already looked
            "hooks": hooks,
            "schedules": [plain_copy(config.scheduler.state_dict()) for config in trainer.lr_scheduler_configs],
            "groups": [group_options(optimizer.param_groups) for optimizer in trainer.optimizers],
        }
        self.attributes.begin()
        self._plain = self.attributes.now()
        self._at, self.is_current = [trainer.global_step, moment, trainer.current_epoch], True

    def leave_validation(self) -> None:
        """Restore the weights that hooks have swapped for a validation, before it is repeated.

        Raises:
            CannotRecover: If there is no copy of the original weights.

        """
        exchanged, own = self.fit_state.exchanged, {} if self._held is None else self._held["own"]["callbacks"]
        own.update({key: state for key, state in exchanged.callback_states.items() if key in own})
        if not exchanged.put_back():
            raise CannotRecover("a hook has exchanged the weights for a validation, and there is no copy of the others")

    def put(self) -> None:
        """Restore the Trainer; the loops follow when they run next."""
        trainer, held = self._trainer, self._held
        assert held is not None
        self.is_current = True
        forget_interruption(trainer)
        self.attributes.put(self._plain)
        for config, state in zip(trainer.lr_scheduler_configs, held["schedules"], strict=True):
            config.scheduler.load_state_dict(plain_copy(state))
        for optimizer, groups in zip(trainer.optimizers, held["groups"], strict=True):
            set_group_options(optimizer.param_groups, groups)
        for callback in trainer.checkpoint_callbacks:
            if getattr(callback, _COUNTER, False):  # a file that is saved again must not get a new version
                callback._enable_version_counter = False
                self._counting.append(callback)
        self.fit_state.resume_from(cast(FitEntry, {**held, "again": self._call_hooks}))

    def request_loaders(self) -> None:
        """Create the loaders that the rank had whose state was taken over. Not collective."""
        assert self._held is not None
        request_as_others(self._trainer, self._held["own"]["memory"]["reloads"])

    def _call_hooks(self) -> None:
        assert self._held is not None
        if self._held["hooks"] is not None:
            self._repeats = True
            try:
                end = end_batch_saves if self._at[1] == Moment.SAVES else end_batch_hooks
                end(self._trainer, *self._held["hooks"])
            finally:
                self._repeats = False

    def all_of_it(self) -> _State:
        """The state that a replacement needs."""
        trainer = self._trainer
        self.attributes.put(self._plain)  # discards the changes of the step in flight
        return {
            **(self.weights() if self._replicas is None else {}),
            "precision": trainer.precision_plugin.state_dict(),
            "held": self._held,
            "attributes": self.attributes.changed(),
            "at": self._at,
            "seed": self._steps.seed,
            "flags": [_flags(callback) for callback in trainer.callbacks],
            "folders": [getattr(callback, "dirpath", None) for callback in trainer.checkpoint_callbacks],
            "loggers": [getattr(logger, "_version", None) for logger in trainer.loggers],
        }

    def weights(self) -> _State:
        """Weights and optimizer states: this rank's shards, where they are sharded."""
        module, optimizers = self._trainer.lightning_module, self._trainer.optimizers
        own = {"module": module.state_dict(), "optimizers": [optimizer.state_dict() for optimizer in optimizers]}
        return own if self._replicas is None else cast(_State, encode(own))

    def put_weights(self, state: _State) -> None:
        """Take over what :meth:`weights` has returned on another rank, which has the same shards."""
        trainer, module, states = self._trainer, state["module"], state["optimizers"]
        if self._replicas is not None:
            module = decode(module, trainer.lightning_module.state_dict())
            states = [decode_states(one, optimizer) for one, optimizer in zip(states, trainer.optimizers, strict=True)]
        trainer.lightning_module.load_state_dict(module)
        for optimizer, found in zip(trainer.optimizers, states, strict=True):
            optimizer.load_state_dict(found)  # moves it to the device of the parameters

    def take_over(self, state: _State) -> None:
        """Take over the state of another rank.

        Args:
            state: From :meth:`all_of_it`.

        """
        trainer = self._trainer
        if self._replicas is None:
            self.put_weights(state)
        trainer.precision_plugin.load_state_dict(state["precision"])
        for callback, flags in zip(trainer.callbacks, state["flags"], strict=True):
            vars(callback).update(flags)  # some are broadcast at the start, such as whether a file was written
        for callback, folder in zip(trainer.checkpoint_callbacks, state["folders"], strict=True):
            if folder is not None:
                callback.dirpath = folder
        for logger, version in zip(trainer.loggers, state["loggers"], strict=True):
            if version is not None and hasattr(logger, "_version"):
                logger._version = version
        self.attributes.begin()
        self.attributes.adopt(state["attributes"])
        self._plain = self.attributes.now()
        held = state["held"]
        held["own"]["metrics"] = of_lost_rank(held["own"]["metrics"])
        data_shards.as_shard(held["own"]["loaders"], self._shard)
        self._held, self._at, self._steps.seed = held, state["at"], state["seed"]


def of_all_shards(states: Sequence[RankState], order: Sequence[int], world_size: int) -> list[RankState]:
    """Order the ranks' states by shard, for a checkpoint that the complete job can resume from.

    Args:
        states: State of each rank of the quorum.
        order: Global ranks of the quorum.
        world_size: Number of shards. A lost rank's shard gets the first rank's state, as a replacement would.

    """
    found = dict(zip(order, states, strict=True))
    for shard in range(world_size):
        if shard not in found:
            found[shard] = copy.deepcopy(states[0])
            found[shard]["metrics"] = of_lost_rank(states[0]["metrics"])
        data_shards.as_shard(found[shard]["loaders"], shard)
    return [found[shard] for shard in range(world_size)]


def _flags(callback: Any) -> dict[str, bool]:
    """Flags of Lightning's callbacks and ours; a custom callback's may be rank-specific, such as whether it writes."""
    kinds = [kind for kind in type(callback).__mro__ if kind.__name__ not in ("Callback", "Checkpoint", "object")]
    known = any(package_of(kind) in _PACKAGES for kind in kinds)
    if not known or getattr(callback, "flags_are_its_own", False) or is_bar(callback):
        return {}
    # The sender may have switched the counter off for a repeated save; in another rank it would stay off.
    return {name: value for name, value in vars(callback).items() if isinstance(value, bool) and name != _COUNTER}
