# SPDX-License-Identifier: Apache-2.0
"""A module's children, parameters and buffers by name, in one pass: several things are saved of them at each step.

The names and their order are those of ``named_modules``, ``named_parameters`` and ``named_buffers``, whose nested generators
take five times as long for a BERT.
"""

from __future__ import annotations

from torch import Tensor, nn

Children = list[tuple[str, nn.Module]]
"""What :func:`named_modules` returns: names and modules."""


def named_modules(module: nn.Module, prefix: str = "") -> Children:
    """The module and all modules within it, each once.

    Args:
        module: Where to begin.
        prefix: Its own name.

    """
    found: Children = []
    seen: set[int] = set()
    pending = [(prefix, module)]
    while pending:
        name, child = pending.pop()
        if id(child) in seen:
            continue
        seen.add(id(child))
        found.append((name, child))
        within = [(_join(name, key), one) for key, one in child._modules.items() if one is not None]
        pending.extend(reversed(within))
    return found


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
