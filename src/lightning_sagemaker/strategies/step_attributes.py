# SPDX-License-Identifier: Apache-2.0
"""Plain attributes of a LightningModule that its training step changes: counters, lists of outputs.

In a pipeline only the last stage runs a training step to its end. What it has changed then, the others take over, so that
hooks at the end of an epoch find the same on all processes, as in one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from lightning_sagemaker._lightning import LightningModule
from lightning_sagemaker.strategies.merge import detached

_KEPT = frozenset({*vars(nn.Module()), *vars(LightningModule())})
"""Attributes of torch's and Lightning's own."""
_NUMBERS = (int, float, bool, str, type(None), np.generic)
_LONGEST, _LARGEST = 1000, 1 << 20
"""Entries of a dict that is compared; elements of a tensor or array that is sent."""


class Grown(NamedTuple):
    """A list has got more entries.

    Attributes:
        length: It had so many.
        entries: The new ones.

    """

    length: int
    entries: list[object]


class _Before(NamedTuple):
    value: object
    sign: object


class StepAttributes:
    """Those that a step changes.

    Args:
        module: Whose step begins.

    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self._before = {name: _Before(value, _sign(value)) for name, value in self._own()}

    def changed(self) -> dict[str, object]:
        """What the step has changed: name -> the value, or what was added to a list."""
        found: dict[str, object] = {}
        for name, value in self._own():
            before = self._before.get(name)
            if before is not None and before.value is value and _sign(value) == before.sign:
                continue
            if before is not None and before.value is value and isinstance(value, list):
                length, first, last = before.sign if isinstance(before.sign, tuple) else (0, 0, 0)
                if len(value) > length and (not length or (id(value[0]), id(value[length - 1])) == (first, last)):
                    if all(map(_is_plain, value[length:])):
                        found[name] = Grown(length, detached(value[length:]))
                    continue
            if _is_plain(value):
                found[name] = detached(value)
        return found

    def take_over(self, changed: Mapping[str, object]) -> None:
        """Change the attributes as the last stage's were.

        Args:
            changed: What :meth:`changed` returned there.

        """
        for name, value in changed.items():
            present = vars(self._module).get(name)
            if isinstance(value, Grown) and type(present) is list:
                present[value.length :] = value.entries
            elif isinstance(value, list) and type(present) is list:
                present[:] = value
            elif not isinstance(value, Grown):
                setattr(self._module, name, value)

    def _own(self) -> list[tuple[str, object]]:
        return [(name, value) for name, value in vars(self._module).items() if name not in _KEPT]


def _sign(value: object) -> object:
    """What differs if a value was changed in place."""
    if type(value) is list:
        return (len(value), id(value[0]), id(value[-1])) if value else (0, 0, 0)
    if type(value) is dict and len(value) <= _LONGEST:
        return {key: id(entry) for key, entry in value.items()}
    return value._version if type(value) is Tensor and not value.is_inference() else None


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return type(value) is dict and all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if type(value) is Tensor:
        return value.numel() <= _LARGEST
    return value.size <= _LARGEST if isinstance(value, np.ndarray) else isinstance(value, _NUMBERS)
