# SPDX-License-Identifier: Apache-2.0
"""The loaders, modules and counters within the wrappers of Fabric's setup."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from lightning_sagemaker._compat.guard import require

if TYPE_CHECKING:
    from typing import TypeGuard

    from torch import nn

    from lightning_sagemaker._types import FabricDataLoader


T = TypeVar("T")


def is_set_up(loader: object) -> TypeGuard[FabricDataLoader]:
    """Whether a loader comes from ``fabric.setup_dataloaders``."""
    return type(loader).__name__ == "_FabricDataLoader"


def inner_loader(loader: T) -> T:
    """The ``DataLoader`` within Fabric's wrapper; any other loader is returned as it is.

    Raises:
        NameGone: If the wrapper's private names have changed.

    """
    if not is_set_up(loader):
        return loader
    require(loader, "_dataloader", "_num_iter_calls")
    return cast(T, loader._dataloader)


def iterations(loader: object) -> int:
    """Number of iterations of Fabric's wrapper, which passes it to the sampler as the epoch."""
    return int(loader._num_iter_calls) if is_set_up(loader) else 0


def set_iterations(loader: object, count: int) -> None:
    """Make Fabric's wrapper continue from a number of iterations."""
    if is_set_up(loader):
        loader._num_iter_calls = count


_set_up = weakref.WeakKeyDictionary[object, int | None]()
"""Loader -> its place in the order in which the script sets them up; None within a loop, where a restart makes others."""
_places = itertools.count()


def list_loaders(kind: type) -> None:
    """Have the class of Fabric's wrappers of loaders list its objects, in the order in which a script sets them up."""
    original: Callable[..., None] = vars(kind)["__init__"]
    iterate: Callable[[object], Iterator[object]] = vars(kind)["__iter__"]

    @functools.wraps(original)
    def listed(self: object, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        _set_up[self] = next(_places) if _observer is None else None

    @functools.wraps(iterate)
    def observed(self: object) -> Iterator[object]:
        return _observed(self, iterate(self), None if _observer is None else _observer.makes(self))

    type.__setattr__(kind, "__init__", listed)
    type.__setattr__(kind, "__iter__", observed)


class Observer(Protocol):
    """Is told of iterations of the loaders that Fabric has set up."""

    def makes(self, loader: object) -> object:
        """An iterator is made; the result is passed to :meth:`begins`."""

    def begins(self, loader: object, made: object) -> Callable[[], None]:
        """The first batch is requested of an iterator; ``made`` is None if it was made before this observer was set.

        Returns:
            Called when the iterator is exhausted, or no longer used.

        """


_observer: Observer | None = None


def observe(observer: Observer | None) -> None:
    """Set who is told of iterations; None for nobody."""
    global _observer
    _observer = observer


def _observed(loader: object, batches: Iterator[object], made: object) -> Iterator[object]:
    end = None if _observer is None else _observer.begins(loader, made)
    try:
        yield from batches
    finally:
        if end is not None:
            end()


def listed_loaders() -> dict[int, object]:
    """The loaders that the script has set up outside of loops and still holds, by their place in that order."""
    return {place: loader for loader, place in list(_set_up.items()) if place is not None}


def is_listed(loader: object) -> bool:
    """Whether it was set up after :func:`list_loaders`."""
    return is_set_up(loader) and loader in _set_up


def all_iterations() -> dict[int, int]:
    """Number of iterations of each of :func:`listed_loaders`."""
    return {place: iterations(loader) for place, loader in listed_loaders().items()}


def set_all_iterations(counts: Mapping[int, int]) -> None:
    """Make the loaders, set up in the same order, continue from these numbers of iterations."""
    for place, loader in listed_loaders().items():
        if place in counts:
            set_iterations(loader, counts[place])


def wrapped_module(value: object) -> nn.Module | None:
    """The wrapper, such as DDP, that reduces gradients in a module that Fabric has set up; None for anything else."""
    return getattr(value, "_forward_module", None)


def original_module(value: nn.Module) -> nn.Module:
    """The script's module within Fabric's wrapper; any other module is returned as it is."""
    return cast("nn.Module", value.module) if type(value).__name__ == "_FabricModule" else value
