# SPDX-License-Identifier: Apache-2.0
"""A module's children, parameters and buffers by name: several things are saved of them at each step.

The names and their order are those of ``named_modules``, ``named_parameters`` and ``named_buffers``, whose nested generators
take many times as long for a BERT. Names are remembered for the next step, which has the same ones if all children have the
same identities and keys.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

Children = list[tuple[str, nn.Module]]
"""What :func:`named_modules` returns: names and modules."""
_Shape = list[str | int]
"""Keys and identities of the children of one module after the other."""

_MOST = 64
_known: dict[int, tuple[_Shape, list[str]]] = {}
"""Identity of a module -> names of those within it. Another module of the same identity and shape has the same ones."""


def modules_of(module: nn.Module) -> list[nn.Module]:
    """The module and all modules within it, each once, in the order of ``named_modules``."""
    return _walk(module)[0]


def named_modules(module: nn.Module, prefix: str = "") -> Children:
    """The module and all modules within it, each once.

    Args:
        module: Where to begin.
        prefix: Its own name.

    """
    found, shape = _walk(module)
    known = _known.get(id(module))
    if known is None or known[0] != shape:
        if len(_known) >= _MOST:
            _known.clear()
        known = _known[id(module)] = shape, [name for name, _ in module.named_modules()]
    names = [_join(prefix, name) for name in known[1]] if prefix else known[1]
    return list(zip(names, found, strict=True))


def _walk(module: nn.Module) -> tuple[list[nn.Module], _Shape]:
    found: list[nn.Module] = []
    shape: _Shape = []
    seen: set[int] = set()
    pending: list[nn.Module | None] = [module]
    while pending:
        child = pending.pop()
        if child is None or id(child) in seen:
            continue
        seen.add(id(child))
        found.append(child)
        if within := child._modules:
            shape.extend(within)
            shape.extend(map(id, within.values()))
            pending.extend(reversed(within.values()))
    return found, shape


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
    return f"{name}.{key}" if name and key else name or key
