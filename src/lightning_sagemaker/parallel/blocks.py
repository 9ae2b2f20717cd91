# SPDX-License-Identifier: Apache-2.0
"""Finds what a model can be cut between: its list of repeated blocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import nn

from lightning_sagemaker.parallel.degrees import ParallelConfigError


@dataclass(frozen=True)
class Blocks:
    """The repeated blocks of a model, in the order in which it calls them.

    Attributes:
        name: Of the list that holds them, as in ``named_modules()``.
        names: Of each block.
        modules: The blocks.

    """

    name: str
    names: tuple[str, ...]
    modules: tuple[nn.Module, ...]

    def __len__(self) -> int:
        return len(self.modules)


def find_blocks(root: nn.Module) -> Blocks:
    """The list of alike modules that holds the most parameters; of nested ones, the outer.

    Raises:
        ParallelConfigError: If there is none, as where all layers share one block.

    """
    found = [blocks for name, module in root.named_modules() if (blocks := _blocks_of(name, module)) is not None]
    if not found:
        raise ParallelConfigError(
            f"{type(root).__name__} has no list of different blocks of the same kind, between which it could be cut into"
            " pipeline stages (ALBERT has one block that all layers share). HINT: set partitions to 1, and"
            " tensor_parallel_degree or sharded_data_parallel_degree instead."
        )
    return max(found, key=lambda blocks: sum(_weight(block) for block in blocks.modules))


def _blocks_of(name: str, module: nn.Module) -> Blocks | None:
    """The members of a list; of a Sequential, which may hold a whole model, those of the most frequent class."""
    if not isinstance(module, nn.ModuleList | nn.Sequential) or len(module) < 2:
        return None
    children = list(enumerate(module))
    if isinstance(module, nn.Sequential):
        (kind, _), *_ = Counter(type(child) for child in module).most_common(1)
        children = [(place, child) for place, child in children if type(child) is kind]
    different = len({id(child) for _, child in children})
    if len(children) < 2 or different < len(children) or not all(_weight(child) for _, child in children):
        return None
    prefix = f"{name}." if name else ""
    names = tuple(f"{prefix}{place}" for place, _ in children)
    return Blocks(name, names, tuple(child for _, child in children))


def _weight(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
