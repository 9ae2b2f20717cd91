# SPDX-License-Identifier: Apache-2.0
"""Plain attributes of a LightningModule that its training step changes: counters, lists of outputs.

In a pipeline only the last stage runs a training step to its end. The other stages take over its changes, so that
hooks at the end of an epoch see the same values on all processes, as with one process.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_
from typing import NamedTuple

from torch import Tensor

from lightning_sagemaker._lightning import LightningModule
from lightning_sagemaker.checkpoint.plain_values import Copy, assign, copied, differs, filled, is_sendable, plain, sent
from lightning_sagemaker.strategies.merge import detached


class Grown(NamedTuple):
    """The change of a list that entries were appended to.

    Attributes:
        length: Number of entries before.
        entries: The appended entries.

    """

    length: int
    entries: list[object]


class StepAttributes:
    """Detects changes of a module's plain attributes in a step; see :mod:`~lightning_sagemaker.checkpoint.plain_values`.

    Args:
        module: The module whose step begins.

    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._before = {name: copied(value) for name, value in plain(module)}

    def changed(self) -> dict[str, object]:
        """The step's changes: name -> the new value, or the entries that were appended to a list."""
        graphs = [(name, value) for name, value in vars(self._module).items() if _has_graph(value)]
        found: dict[str, object] = {}
        for name, value in [*plain(self._module), *graphs]:
            before = self._before.get(name)
            if differs(before, value):
                change = detached(_change(before, value))
                if isinstance(change, Grown):
                    if is_sendable(change.entries):
                        found[name] = change
                elif is_sendable(change):
                    found[name] = sent(change)
        return found

    def take_over(self, changed: Mapping[str, object]) -> None:
        """Apply the last stage's changes to this process's attributes.

        Args:
            changed: The last stage's result of :meth:`changed`.

        """
        own = vars(self._module)
        for name, value in changed.items():
            if isinstance(value, Grown):
                held = own.get(name)
                if isinstance(held, list):
                    held[value.length :] = value.entries
            else:
                assign(self._module, {name: filled(own.get(name), value)})


def _has_graph(value: object) -> bool:
    """Whether ``value`` is a tensor that was not detached, such as a loss."""
    return type(value) is Tensor and value.requires_grad


def _change(before: object, value: object) -> object:
    """The new value, or the appended entries of a list."""
    if (
        isinstance(before, Copy)
        and before.value is value
        and isinstance(value, list)
        and isinstance(before.within, list)
    ):
        length = len(before.within)
        if len(value) > length and all(map(is_, before.within, value)):
            return Grown(length, value[length:])
    return value
