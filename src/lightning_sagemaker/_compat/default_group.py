# SPDX-License-Identifier: Apache-2.0
"""Temporarily replaces the default group of ``torch.distributed``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import NoReturn

import torch
import torch.distributed as dist

from lightning_sagemaker._compat.guard import require

_c10d = import_module("torch.distributed.distributed_c10d")
require(_c10d, "_world")
_TABLES = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config")
"""Attributes of a group that torch itself reads, as for an error message."""
require(_c10d._world, "default_pg", *_TABLES)
_KINDS = ("barrier", "broadcast", "gather", "recv", "reduce", "scatter", "send", "to_all", "toall")
"""Parts of the names of a process group's collective methods, which differ between torch versions."""

_FUNCTIONAL = "a functional collective"
"""Stands for a method's name, as torch looks up the group itself."""


@contextmanager
def refusing_collectives(
    refuse: Callable[[str], NoReturn], allows: Callable[[str], bool] = lambda name: False
) -> Iterator[None]:
    """Context in which the default group keeps rank and size, and collectives call ``refuse``.

    Args:
        refuse: Called with a collective's name in place of the collective; must raise.
        allows: Whether a collective, by name, is run as usual.

    """

    def instead(name: str, *arguments: object, **keywords: object) -> object:
        if name != _FUNCTIONAL and allows(name):
            return getattr(usual, name)(*arguments, **keywords)
        refuse(name.strip("_"))

    usual = _c10d._world.default_pg
    with _replaced(instead):
        yield


@contextmanager
def alone_in_default_group(called: Callable[[str], None]) -> Iterator[None]:
    """Context in which collectives of the default group are local: a gather returns this process's part for all ranks.

    Args:
        called: Called with the name of each collective.

    """

    def instead(name: str, *arguments: object, **_: object) -> object:
        called(name.strip("_"))
        if "gather" in name:
            fill(*arguments[:2])
        return _Done()

    with _replaced(instead):
        yield


def another_default_group(
    instead: Callable[..., object], place: Callable[[], tuple[int, int] | None]
) -> Callable[[], None]:
    """Replace the default group by one whose collectives are replaced by ``instead``.

    Args:
        instead: Called with the name of a collective (empty for a functional one) and its arguments. If it returns None,
            the collective of the usual group is run.
        place: Rank and size of the group; None for the usual ones.

    Returns:
        A function that restores the usual state.

    """
    usual = _c10d._world.default_pg

    def decide(name: str, *arguments: object, **keywords: object) -> object:
        if name == _FUNCTIONAL:
            return None
        found = instead(name, *arguments, **keywords)
        return getattr(usual, name)(*arguments, **keywords) if found is None else found

    stack = ExitStack()
    group = stack.enter_context(_replaced(decide))
    group.place = place
    return stack.close


def fill(outputs: object, inputs: object) -> None:
    """Copy ``inputs`` into each rank's place of ``outputs``: lists of tensors, or concatenated tensors."""
    if isinstance(outputs, torch.Tensor) and isinstance(inputs, torch.Tensor):
        outputs.view(-1, inputs.numel()).copy_(inputs.reshape(1, -1))
    elif isinstance(outputs, (list, tuple)) and isinstance(inputs, (list, tuple)):
        for places, own in zip(outputs, inputs, strict=False):
            for place in [places] if isinstance(places, torch.Tensor) else places:
                fill(place, own)


def done() -> dist.Work:
    """The handle of a completed collective."""
    return _Done()


class _Done(dist.Work):
    def wait(self, timeout: object = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


@contextmanager
def _replaced(instead: Callable[..., object]) -> Iterator[_Replacement]:
    world = _c10d._world
    own = world.default_pg
    tables = [getattr(world, name) for name in _TABLES]
    group = _Replacement(own, instead)
    for table in tables:
        if own in table:
            table[group] = table[own]
    world.default_pg = group
    try:
        yield group
    finally:
        world.default_pg = own
        for table in tables:
            table.pop(group, None)


@contextmanager
def usual_collectives() -> Iterator[None]:
    """Context in which the default group is usable within :func:`refusing_collectives`; does nothing elsewhere."""
    world = _c10d._world
    group = world.default_pg
    world.default_pg = getattr(group, "usual", group)
    try:
        yield
    finally:
        world.default_pg = group


class _Replacement(dist.ProcessGroup):
    def __init__(self, usual: dist.ProcessGroup, instead: Callable[..., object]) -> None:
        super().__init__(usual.rank(), usual.size())  # type: ignore[call-arg]  # of a backend in Python
        self.usual, self.instead = usual, instead
        self.place: Callable[[], tuple[int, int] | None] = lambda: None

    def rank(self) -> int:
        return (self.place() or (self.usual.rank(), 0))[0]

    def size(self) -> int:
        return (self.place() or (0, self.usual.size()))[1]

    @property
    def _device_types(self) -> list[torch.device]:  # read by monitored_barrier from torch 2.14 on
        return self.usual._device_types

    @property
    def group_name(self) -> str:  # type: ignore[override]  # its type is a new one
        """The name by which functional collectives look the group up."""
        self.instead(_FUNCTIONAL)
        return self.usual.group_name


def _method(name: str) -> Callable[..., object]:
    return lambda group, *arguments, **keywords: group.instead(name, *arguments, **keywords)


for _name in dir(dist.ProcessGroup):
    if any(kind in _name for kind in _KINDS):
        setattr(_Replacement, _name, _method(_name))
