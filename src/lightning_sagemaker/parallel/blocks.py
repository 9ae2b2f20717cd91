# SPDX-License-Identifier: Apache-2.0
"""Finds where a model can be split: its list of repeated blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import nn

from lightning_sagemaker.parallel.degrees import ParallelConfigError


@dataclass(frozen=True)
class Blocks:
    """The repeated blocks of a model, in the order in which it calls them.

    Attributes:
        name: Name of the list that holds them, as in ``named_modules()``.
        names: Name of each block.
        modules: The blocks.

    """

    name: str
    names: tuple[str, ...]
    modules: tuple[nn.Module, ...]

    def __len__(self) -> int:
        return len(self.modules)


def find_blocks(root: nn.Module) -> Blocks:
    """The list of modules of one type with the most parameters; if lists are nested, the outer one.

    Raises:
        ParallelConfigError: If there is none, as when all layers share one block.

    """
    found = [blocks for name, module in root.named_modules() if (blocks := _blocks_of(name, module)) is not None]
    if not found:
        raise ParallelConfigError(
            f"{type(root).__name__} has no list of distinct blocks of the same type to split into pipeline stages (ALBERT"
            " has one block that all layers share). HINT: set partitions to 1, and tensor_parallel_degree or"
            " sharded_data_parallel_degree instead."
        )
    return max(found, key=lambda blocks: sum(_weight(block) for block in blocks.modules))


def find_units(root: nn.Module, kinds: Collection[type[nn.Module]] | None = None) -> list[nn.Module]:
    """The modules whose parameters are gathered and freed together, inner ones first.

    Args:
        root: The model.
        kinds: Their classes. Default: those that a transformers model must not split, if it contains more than one such
            module; else the members of :func:`find_blocks`; none if there are neither, as in ALBERT with its single block.
            Modules that share parameters with others are left out.

    Raises:
        ParallelConfigError: If there is no module of ``kinds``.

    """
    modules = [module for module in root.modules() if module is not root][::-1]
    if kinds is not None:
        found = [module for module in modules if isinstance(module, tuple(kinds))]
        if not found:
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise ParallelConfigError(
                f"auto_wrap_policy={{{names}}} was set, but {type(root).__name__} contains no such module. HINT: pass"
                " the classes of its blocks, or leave it out."
            )
        return found
    named = {name for module in root.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    counts = Counter(type(module).__name__ for module in modules)
    found = [module for module in modules if counts[type(module).__name__] > 1 and type(module).__name__ in named]
    if not found:
        try:
            found = [part for block in find_blocks(root).modules for part in _called(block)]
        except ParallelConfigError:
            return []
    owners = _owners(root)
    return [module for module in found if not _is_tied(module, owners)]


def _called(module: nn.Module) -> list[nn.Module]:
    """The module itself, or the modules in it if it is a list, which is not called."""
    if not isinstance(module, nn.ModuleList | nn.ModuleDict):
        return [module]
    return [part for child in module.children() for part in _called(child)]


def _owners(root: nn.Module) -> dict[int, set[nn.Module]]:
    """Identity of each parameter -> the modules that have it."""
    found: dict[int, set[nn.Module]] = {}
    for module in root.modules():
        for parameter in module.parameters(recurse=False):
            found.setdefault(id(parameter), set()).add(module)
    return found


def _is_tied(module: nn.Module, owners: Mapping[int, set[nn.Module]]) -> bool:
    """Whether a module shares a parameter with others. Then its parameters stay in the root's unit, gathered first."""
    parts = set(module.modules())
    return any(not owners[id(parameter)] <= parts for parameter in module.parameters())


def _blocks_of(name: str, module: nn.Module) -> Blocks | None:
    """The members of a list, or of a dictionary whose keys are numbers, as torchtitan has them.

    A Sequential or a dictionary may hold a full model: then the members of the most frequent class. Other keys name parts
    that are not a sequence, such as two encoders or a layer's experts.
    """
    if not isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential) or len(module) < 2:
        return None
    children = list(module._modules.items())
    if isinstance(module, nn.ModuleDict) and not all(key.isdecimal() for key, _ in children):
        return None
    if not isinstance(module, nn.ModuleList):
        (kind, _), *_ = Counter(type(child) for _, child in children).most_common(1)
        children = [(place, child) for place, child in children if type(child) is kind]
    different = len({id(child) for _, child in children})
    if len(children) < 2 or different < len(children) or not all(_weight(child) for _, child in children):
        return None
    prefix = f"{name}." if name else ""
    names = tuple(f"{prefix}{place}" for place, _ in children)
    return Blocks(name, names, tuple(child for _, child in children))


def _weight(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
