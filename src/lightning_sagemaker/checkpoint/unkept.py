# SPDX-License-Identifier: Apache-2.0
"""Warns of values that training changes and no checkpoint holds: a resumed run starts with those that the script sets."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, Sampler

from lightning_sagemaker._compat.trainer import datamodule_of
from lightning_sagemaker._lightning import rank_zero_warn
from lightning_sagemaker.checkpoint.accumulated_names import accumulated_names, saved_names
from lightning_sagemaker.checkpoint.epoch_names import names_reset
from lightning_sagemaker.checkpoint.plain_values import KEPT, Values, copied, differs, is_plain
from lightning_sagemaker.checkpoint.records import is_of_script

if TYPE_CHECKING:
    from lightning_sagemaker._types import Trainer

_CLOCKS: tuple[Callable[[], float], ...] = (time.time, time.monotonic, time.perf_counter)
_WATCHED = (int, float, complex, str, torch.Tensor, np.ndarray, np.generic, deque)
"""Types that are watched; dicts and sets are often caches, lists are records for a plot; a deque may be a replay buffer."""
_END = ("on_train_epoch_end",)
_WHEN = ("start", "epoch_start", "epoch_end", "end")
_RESETS = ("on_train_batch_start", *(f"on_validation_{when}" for when in _WHEN))
"""Hooks that reset values which a validation or a batch collects."""
_MOST_NAMED = 8
_SMALLEST_TIME = 10**9
"""Minimum of an integer that is a time in nanoseconds: smaller ones count steps."""


class _Names(NamedTuple):
    """Names of watched attributes.

    Attributes:
        accumulated: Attributes that depend on their earlier values, and that the script does not save itself.
        at_end: Attributes that an epoch's end sets.
        reset: Attributes that a validation or a batch resets.

    """

    accumulated: frozenset[str]
    at_end: frozenset[str]
    reset: frozenset[str]


class Unkept:
    """Watches values that a script's code updates from their earlier ones: of the module, of callbacks, of the data.

    Args:
        trainer: Trainer of the fit.

    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._began = [clock() for clock in _CLOCKS]
        self._before: dict[str, object] = {}
        self._late: dict[str, object] = {}
        self._said: set[str] = set()
        self._has_begun = False
        self._kinds = frozenset[type]()
        self._names = _Names(frozenset(), frozenset(), frozenset())

    def begin(self, owners: Mapping[str, object], of_epoch: Collection[str]) -> None:
        """Record the values at the start of the fit.

        Args:
            owners: Name -> part of the module, or callback.
            of_epoch: Names of their attributes that checkpoints hold.

        """
        self._before = {name: copied(value) for name, value in self._watched(owners, of_epoch)}
        self._has_begun = True

    def look(self, owners: Mapping[str, object], of_epoch: Collection[str]) -> None:
        """When a checkpoint is saved, warn once of each changed value that it does not hold."""
        if not self._has_begun:
            return
        found = [name for name, value in self._watched(owners, of_epoch) if self._has_changed(name, value)]
        if new := [name for name in found if name not in self._said]:
            self._said.update(new)
            rest = f" and {len(new) - _MOST_NAMED} more" if len(new) > _MOST_NAMED else ""
            rank_zero_warn(
                f"No checkpoint has what training changes in {', '.join(new[:_MOST_NAMED])}{rest}: a run that is resumed"
                " begins with the values that the script sets. HINT: register a buffer, or keep them in on_save_checkpoint"
                " or a state_dict."
            )

    def _has_changed(self, name: str, value: object) -> bool:
        if self._is_time(value):
            return False
        if self._before.get(name) is not None or name.rpartition(".")[2] in self._names.at_end:
            return differs(self._before.get(name), value)
        # A cache is filled once; a value that is updated from itself changes again.
        return differs(self._late.setdefault(name, copied(value)), value)

    def _is_time(self, value: object) -> bool:
        if not isinstance(value, (int, float)) or (isinstance(value, int) and value < _SMALLEST_TIME):
            return False
        clocks = [*zip(_CLOCKS, self._began, strict=True)]
        return any(start - 1 <= value / unit <= clock() for clock, start in clocks for unit in (1, 1e9))

    def _watched(self, owners: Mapping[str, object], of_epoch: Collection[str]) -> Iterator[tuple[str, object]]:
        """The watched values, by name."""
        data = datamodule_of(self._trainer)
        whose = {**owners, **({} if data is None else {"datamodule": data})}
        kinds = frozenset(type(one) for one in whose.values())
        if kinds != self._kinds:
            self._kinds, self._names = kinds, _names_of(kinds)
        accumulated, at_end, reset = self._names
        for owner, one in whose.items():
            yield from _values(owner, one, accumulated - reset - frozenset(of_epoch if owner in owners else ()))
            yield from _replaced(owner, one, at_end)
            for name, part in _parts(owner, one):
                yield from _values(name, part, accumulated | at_end | accumulated_names(type(part)))
        if "gradient_clip_val" in accumulated:
            yield "trainer.gradient_clip_val", self._trainer.gradient_clip_val


def _names_of(kinds: Collection[type]) -> _Names:
    saved = frozenset(name for kind in kinds for name in saved_names(kind))
    accumulated = frozenset(name for kind in kinds for name in accumulated_names(kind))
    at_end = frozenset(name for kind in kinds for name in names_reset(kind, _END))
    reset = frozenset(name for kind in kinds for name in names_reset(kind, _RESETS) - accumulated_names(kind, _RESETS))
    return _Names(accumulated - saved, at_end - saved, reset)


def _values(owner: str, one: object, names: Collection[str]) -> Iterator[tuple[str, object]]:
    for name in names:
        value = vars(one).get(name, getattr(type(one), name, None))
        is_said = isinstance(value, _WATCHED) and not isinstance(value, bool) and is_plain(value) and name not in KEPT
        if is_said and not name.startswith("_"):
            yield f"{owner}.{name}", value


def _replaced(owner: str, one: object, names: Collection[str]) -> Iterator[tuple[str, object]]:
    """Data sets that an epoch's end replaces, identified without references, which would keep them in memory."""
    for name in names:
        value = vars(one).get(name)
        if isinstance(value, (Dataset, Sampler)):
            yield f"{owner}.{name}", str(id(value))


def _parts(owner: str, one: object) -> Iterator[tuple[str, object]]:
    """Layers of torch, data sets, samplers and objects of the script in attributes."""
    within: Values = {name: value for name, value in [*vars(one).items()] if name not in KEPT}
    if owner == "module" and isinstance(one, nn.Module):
        children = [(name, child) for name, child in one.named_modules() if name]
        yield from ((f"{owner}.{name}", child) for name, child in children if _is_torchs(child))
    for name, value in within.items():
        is_data = isinstance(value, (Dataset, Sampler)) and not isinstance(value, IterableDataset)
        if is_data or is_of_script(type(value)):
            yield f"{owner}.{name}", value


def _is_torchs(child: nn.Module) -> bool:
    return type(child).__module__.startswith("torch.nn.modules")
