# SPDX-License-Identifier: Apache-2.0
"""A module's children, parameters and buffers by name, in one pass, as they are needed at each step.

The names and their order are those of ``named_modules``, ``named_parameters`` and ``named_buffers``, whose nested generators
take five times as long for a BERT.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter, is_, methodcaller

from torch import Tensor, nn

Children = list[tuple[str, nn.Module]]
"""The result of :func:`named_modules`: names and modules."""
_within, _parameters, _values = attrgetter("_modules"), attrgetter("_parameters"), methodcaller("values")


class ModuleWalk:
    """Walks over a module at each step, with the results cached until its structure changes.

    Args:
        module: The root module.

    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._children: Children = []
        self._modules: list[nn.Module] = []
        self._shape: tuple[list[int], list[str], list[nn.Module | None]] = [], [], []
        self._held: list[nn.Parameter | None] = []
        self._parameters: list[nn.Parameter] = []

    def look(self) -> tuple[Children, list[nn.Parameter]]:
        """The current results of :func:`named_modules` and ``parameters()``."""
        sizes, keys, entries = _shape(self._modules)
        if not sizes or sizes != self._shape[0] or keys != self._shape[1] or not _are(entries, self._shape[2]):
            self._children = named_modules(self._module)
            self._modules = [child for _, child in self._children]
            self._shape = _shape(self._modules)
        held = [*chain.from_iterable(map(_values, map(_parameters, self._modules)))]
        if not _are(held, self._held):
            self._held, self._parameters = held, parameters_of(self._modules)
        return self._children, self._parameters

    def recent(self) -> tuple[Children, list[nn.Parameter]]:
        """The last result of :meth:`look`, which is called if there is none."""
        return (self._children, self._parameters) if self._children else self.look()


def _shape(modules: list[nn.Module]) -> tuple[list[int], list[str], list[nn.Module | None]]:
    """Number of children of each module, and the keys and values of all children."""
    within = [*map(_within, modules)]
    return [*map(len, within)], [*chain.from_iterable(within)], [*chain.from_iterable(map(_values, within))]


def _are(found: Sequence[object], known: Sequence[object]) -> bool:
    """Whether the objects are identical; not by ``==``, which torchmetrics overrides."""
    return len(found) == len(known) and all(map(is_, found, known))


def named_modules(module: nn.Module) -> Children:
    """The module and all modules within it, each once."""
    found: Children = []
    seen: set[int] = set()
    pending = [("", module)]
    while pending:
        name, child = pending.pop()
        if id(child) in seen:
            continue
        seen.add(id(child))
        found.append((name, child))
        within = [(_join(name, key), one) for key, one in child._modules.items() if one is not None]
        pending.extend(reversed(within))
    return found


def parameters_of(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Parameters of modules, each once."""
    found = {id(one): one for module in modules for one in module._parameters.values() if one is not None}
    return list(found.values())


def named_parameters(children: Children) -> list[tuple[str, nn.Parameter]]:
    """Parameters of :func:`named_modules`, each once."""
    seen: set[int] = set()
    found: list[tuple[str, nn.Parameter]] = []
    for name, child in children:
        for key, parameter in child._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                found.append((_join(name, key), parameter))
    return found


def named_buffers(children: Children) -> list[tuple[str, Tensor]]:
    """Buffers of :func:`named_modules`, each once."""
    seen: set[int] = set()
    found: list[tuple[str, Tensor]] = []
    for name, child in children:
        for key, buffer in child._buffers.items():
            if buffer is not None and id(buffer) not in seen:
                seen.add(id(buffer))
                found.append((_join(name, key), buffer))
    return found


def _join(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
