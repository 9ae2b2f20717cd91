# SPDX-License-Identifier: Apache-2.0
"""Another default group of ``torch.distributed`` for a while, or its results: what a collective does is decided here."""

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
"""What torch looks up of a group by itself, as for the text of an error."""
require(_c10d._world, "default_pg", *_TABLES)
_KINDS = ("barrier", "broadcast", "gather", "recv", "reduce", "scatter", "send", "to_all", "toall")
"""Parts of the names of a process group's methods in which other processes take part; versions of torch have other ones."""

_SAME = ("_allgather_base", "allgather", "allgather_coalesced", "allreduce", "allreduce_coalesced", "broadcast")
"""Methods whose results, their first argument, are the same on all ranks."""
require(dist.ProcessGroup, *_SAME)
_SAME_TOO = ("all_gather_single", "all_gather_single_coalesced", "allgather_into_tensor_coalesced")
"""Those that some versions of torch have: 2.5 has only the last of them."""
_FUNCTIONAL = "a functional collective"
"""In the place of a method's name: torch looks up the group itself."""


@contextmanager
def refusing_collectives(
    refuse: Callable[[str], NoReturn], allows: Callable[[str], bool] = lambda name: False
) -> Iterator[None]:
    """Within it the default group has this process's rank and the number of ranks, and no collective.

    Args:
        refuse: Called with the name of each collective of the group that is called, instead of it; raises.
        allows: Whether one of a name is called as always.

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
    """Within it a collective of the default group is one of this process: it gathers its own part from all ranks.

    Args:
        called: Gets the name of each that is called.

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
    """Replace the default group by one in which others decide what a collective does.

    Args:
        instead: Called with the name of a collective (empty for a functional one) and its arguments. If it returns None,
            the collective is that of the usual group.
        place: Rank and size of the group; None: the usual ones.

    Returns:
        What ends it.

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


def watch_results(wanted: Callable[[], bool], seen: Callable[[str, list[torch.Tensor]], None]) -> Callable[[], None]:
    """Show what collectives of the default group give, of which all ranks get the same.

    Args:
        wanted: Whether one that is called now is shown: it is waited for, even if it is asynchronous.
        seen: Called with the name of each and its results.

    Returns:
        What ends it.

    """
    methods = vars(dist.ProcessGroup)  # getattr would unbind them
    usual = {name: methods[name] for name in (*_SAME, *_SAME_TOO) if name in methods}

    def watching(name: str) -> Callable[..., object]:
        def call(group: dist.ProcessGroup, outputs: object, *arguments: object, **keywords: object) -> object:
            work = usual[name](group, outputs, *arguments, **keywords)
            if group is _c10d._world.default_pg and wanted():
                if work is not None:
                    work.wait()
                seen(name, tensors_in(outputs))
            return work

        return call

    for name in usual:
        setattr(dist.ProcessGroup, name, watching(name))

    def end() -> None:
        for name, method in usual.items():
            setattr(dist.ProcessGroup, name, method)

    return end


def tensors_in(value: object) -> list[torch.Tensor]:
    """Those of lists of lists, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [one for part in value for one in tensors_in(part)] if isinstance(value, (list, tuple)) else []


def fill(outputs: object, inputs: object) -> None:
    """Put a part into the place of each rank's: lists of tensors, or tensors that have them all."""
    if isinstance(outputs, torch.Tensor) and isinstance(inputs, torch.Tensor):
        outputs.view(-1, inputs.numel()).copy_(inputs.reshape(1, -1))
    elif isinstance(outputs, (list, tuple)) and isinstance(inputs, (list, tuple)):
        for places, own in zip(outputs, inputs, strict=False):
            for place in [places] if isinstance(places, torch.Tensor) else places:
                fill(place, own)


def done() -> dist.Work:
    """A collective that has ended."""
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
    """Within :func:`refusing_collectives`, the default group that it has replaced; elsewhere nothing changes."""
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
    def _device_types(self) -> list[torch.device]:  # from torch 2.14 on, monitored_barrier asks for it
        return self.usual._device_types

    @property
    def group_name(self) -> str:  # type: ignore[override]  # its type is a new one
        """By which the functional collectives look a group up."""
        self.instead(_FUNCTIONAL)
        return self.usual.group_name


def _method(name: str) -> Callable[..., object]:
    return lambda group, *arguments, **keywords: group.instead(name, *arguments, **keywords)


for _name in dir(dist.ProcessGroup):
    if any(kind in _name for kind in _KINDS):
        setattr(_Replacement, _name, _method(_name))
