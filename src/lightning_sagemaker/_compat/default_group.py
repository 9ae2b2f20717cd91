# SPDX-License-Identifier: Apache-2.0
"""Another default group of ``torch.distributed`` for a while, which refuses every collective."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import NoReturn

import torch.distributed as dist

from lightning_sagemaker._compat.guard import require

_c10d = import_module("torch.distributed.distributed_c10d")
require(_c10d, "_world")
_TABLES = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config")
"""What torch looks up of a group by itself, as for the text of an error."""
require(_c10d._world, "default_pg", *_TABLES)
_KINDS = ("barrier", "broadcast", "gather", "recv", "reduce", "scatter", "send", "to_all", "toall")
"""Parts of the names of a process group's methods in which other processes take part; versions of torch have other ones."""


@contextmanager
def refusing_collectives(
    refuse: Callable[[str], NoReturn], allows: Callable[[str], bool] = lambda name: False
) -> Iterator[None]:
    """Within it the default group has this process's rank and the number of ranks, and no collective.

    Args:
        refuse: Called with the name of each collective of the group that is called, instead of it; raises.
        allows: Whether one of a name is called as always.

    """
    world = _c10d._world
    own = world.default_pg
    tables = [getattr(world, name) for name in _TABLES]
    group = _Refusing(own, refuse, allows)
    for table in tables:
        if own in table:
            table[group] = table[own]
    world.default_pg = group
    try:
        yield
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


class _Refusing(dist.ProcessGroup):
    def __init__(
        self, usual: dist.ProcessGroup, refuse: Callable[[str], NoReturn], allows: Callable[[str], bool]
    ) -> None:
        super().__init__(usual.rank(), usual.size())  # type: ignore[call-arg]  # of a backend in Python
        self.usual, self.refuse, self.allows = usual, refuse, allows

    @property
    def group_name(self) -> NoReturn:
        """By which the functional collectives look a group up."""
        self.refuse("a functional collective")


def _method(name: str) -> Callable[..., object]:
    def call(group: _Refusing, *arguments: object, **keywords: object) -> object:
        if group.allows(name):
            return getattr(group.usual, name)(*arguments, **keywords)
        group.refuse(name.strip("_"))

    return call


for _name in dir(dist.ProcessGroup):
    if any(kind in _name for kind in _KINDS):
        setattr(_Refusing, _name, _method(_name))
