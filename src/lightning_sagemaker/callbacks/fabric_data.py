# SPDX-License-Identifier: Apache-2.0
"""A custom loop's values and schedulers in its checkpoints, in a form that ``weights_only`` accepts; else refused early."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from lightning_sagemaker._compat.fabric import inner_loader
from lightning_sagemaker._lightning import rank_zero_warn
from lightning_sagemaker.callbacks.fabric_values import is_loader, is_small
from lightning_sagemaker.checkpoint.generators import is_generator
from lightning_sagemaker.checkpoint.loop_values import as_data, from_data
from lightning_sagemaker.checkpoint.stateful import is_stateful
from lightning_sagemaker.checkpoint.stored_values import NotStored
from lightning_sagemaker.data.position import is_watched

if TYPE_CHECKING:
    import torch

    from lightning_sagemaker._types import StateDict


KEEP_DATA = (
    "keep numbers, text, tensors, and containers of these in state, each module and optimizer in an entry of its own, or"
    " give an object's class a state_dict() of them and a load_state_dict(); InterruptibleLoop(weights_only=False) reads any"
    " object, but runs code in the file: use it for trusted checkpoints only"
)


class LoopData:
    """Converts values, and states of schedulers and other small objects, to a form that ``weights_only`` accepts.

    Args:
        state: The user's objects.
        weights_only: Whether checkpoints are loaded with ``weights_only``.

    Raises:
        ValueError: If an object in ``state`` would be saved at a stop, and be refused at the restart.

    """

    def __init__(self, state: StateDict, weights_only: bool) -> None:
        self._state, self._weights_only = state, weights_only
        self._warned: set[str] = set()
        for name, value in self._objects():
            if is_stateful(value) and isinstance(value, Iterable):
                continue  # a loader, whose state_dict may start an iteration
            with contextlib.suppress(_NoState):
                if why := self._why_not(value):
                    raise ValueError(f"state[{name!r}] {why}, and would not be read at a restart. HINT: {KEEP_DATA}.")

    def _objects(self) -> list[tuple[str, object]]:
        return [(name, inner_loader(value)) for name, value in self._state.items()]

    def _why_not(self, value: object) -> str | None:
        try:
            self._entry(value)
        except NotStored as error:
            return str(error)
        return None

    def _entry(self, value: object) -> tuple[object, bool]:
        if not is_small(value):
            return value, False
        if is_stateful(value):
            try:
                value = value.state_dict()
            except Exception as error:  # it may have no state before its first use
                raise _NoState from error
        return as_data(value) if self._weights_only or is_generator(value) else (value, False)

    def content(self) -> tuple[StateDict, list[str]]:
        """The content to save for each object, and the names of converted ones; None for a loader whose position is kept.

        An object that the loop has only now added is saved unchanged, so that no work is lost if the file is trusted.
        """
        found: StateDict = {}
        others = []
        for name, value in self._objects():
            if is_watched(value):
                found[name] = None
                continue
            try:
                found[name], is_other = self._entry(value)
            except (NotStored, _NoState) as error:
                found[name], is_other = value, False
                self._warn(name, error)
            others += [name] if is_other else []
        return found, others

    def small(self) -> tuple[StateDict, list[str]]:
        """A copy of the content without modules, optimizers, and what cannot be stored."""
        found: StateDict = {}
        others = []
        for name, value in self._objects():
            with contextlib.suppress(NotStored, _NoState):
                if is_small(value) and not is_loader(value):
                    found[name], is_other = copy.deepcopy(self._entry(value))
                    others += [name] if is_other else []
        return found, others

    def _warn(self, name: str, error: Exception) -> None:
        if isinstance(error, NotStored) and name not in self._warned:
            self._warned.add(name)
            rank_zero_warn(f"state[{name!r}] {error}: a restart will not read the checkpoint. HINT: {KEEP_DATA}.")

    def wanted(self) -> StateDict:
        """The dictionary that Fabric loads into: modules and optimizers, and placeholders for everything else."""
        return {name: None if is_small(value) else value for name, value in self._state.items()}

    def put(self, content: StateDict, others: Iterable[str], device: torch.device) -> None:
        """Take over the loaded content.

        Args:
            content: Name -> loaded content.
            others: Names of converted values.
            device: Device for tensors that were not on the CPU.

        """
        for name, own in self._objects():
            if name not in content or (content[name] is None and is_loader(own)):
                continue
            value = content[name]
            if name in others:
                value = from_data(None if is_stateful(own) else own, value, device)
            if is_stateful(own):
                if is_small(own) or isinstance(value, dict):  # FSDP's strategy itself loads sharded objects only
                    own.load_state_dict(cast("StateDict", value))
            else:
                self._state[name] = value


class _NoState(Exception):
    """An object's ``state_dict`` failed."""
