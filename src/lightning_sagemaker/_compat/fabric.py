# SPDX-License-Identifier: Apache-2.0
"""The loaders, modules and counters within the wrappers of Fabric's setup."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

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


def wrapped_module(value: object) -> nn.Module | None:
    """The wrapper, such as DDP, that reduces gradients in a module that Fabric has set up; None for anything else."""
    return getattr(value, "_forward_module", None)


def original_module(value: nn.Module) -> nn.Module:
    """The script's module within Fabric's wrapper; any other module is returned as it is."""
    return cast("nn.Module", value.module) if type(value).__name__ == "_FabricModule" else value
