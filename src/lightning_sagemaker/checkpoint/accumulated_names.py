# SPDX-License-Identifier: Apache-2.0
"""Finds attributes that a class's code updates from their own values: counters, annealed weights, growing lists.

An attribute that a hook merely sets, such as the last loss, is set again in a resumed run. One that depends on its earlier
value would differ there.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator

from lightning_sagemaker.checkpoint.records import package_of

_GROWS = frozenset({"append", "appendleft", "extend", "add_", "mul_", "lerp_", "copy_"})
_CLOCKS = frozenset({"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"})
_LIBRARIES = frozenset(
    {"builtins", "abc", "torch", "torchmetrics", "lightning", "pytorch_lightning", "lightning_sagemaker"}
)
_SAVES = ("on_save_checkpoint", "state_dict", "get_extra_state")
_known: dict[tuple[type, tuple[str, ...]], frozenset[str]] = {}
"""Cached results of :func:`accumulated_names`."""


def accumulated_names(kind: type, methods: tuple[str, ...] = ()) -> frozenset[str]:
    """Names of attributes that a class updates from their own values; methods that read a clock are ignored.

    Args:
        kind: The class. The attributes may be of other objects.
        methods: Methods to analyze; by default all but the constructor and those that are called in a save.

    """
    if (kind, methods) not in _known:
        _known[kind, methods] = frozenset(_accumulated(kind, methods))
    return _known[kind, methods]


def _accumulated(kind: type, methods: tuple[str, ...]) -> Iterator[str]:
    trees = [_tree(one) for one in _methods(kind) if _is_among(one.__name__, methods)]
    yield from (name for tree in trees if _names(tree).isdisjoint(_CLOCKS) for name in _carried_on(tree, ()))


def saved_names(kind: type) -> frozenset[str]:
    """Names that occur in a class's own hooks of a save, so that the script saves them itself."""
    return frozenset[str]().union(*(_names(_tree(one)) for one in _methods(kind) if one.__name__ in _SAVES))


def _is_among(name: str, methods: tuple[str, ...]) -> bool:
    return name in methods if methods else name not in ("__init__", *_SAVES)


def _methods(kind: type) -> Iterator[Callable[..., object]]:
    for base in kind.__mro__:
        if package_of(base) not in _LIBRARIES:
            functions = [inspect.unwrap(value) for value in vars(base).values() if inspect.isfunction(value)]
            yield from filter(inspect.isfunction, functions)


def _tree(function: Callable[..., object]) -> ast.AST:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):  # created by `exec`, or a lambda within an expression
        return ast.Module([], [])


def _names(tree: ast.AST) -> set[str]:
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return found | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def _carried_on(node: ast.AST, conditions: tuple[ast.expr, ...]) -> Iterator[str]:
    """Names in a part of the code, which runs under ``conditions``."""
    if isinstance(node, ast.AugAssign):
        yield from filter(None, [_attribute(node.target)])
    elif isinstance(node, ast.Assign):
        read = _read(node.value).union(*map(_read, conditions))
        for target in [one for targets in node.targets for one in ast.walk(targets)]:
            if isinstance(target, ast.Attribute) and ast.unparse(target) in read:
                yield target.attr
            elif isinstance(target, ast.Subscript) and isinstance(target.ctx, ast.Store):
                yield from filter(None, [_attribute(target)])
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GROWS:
        yield from filter(None, [_attribute(node.func.value)])
    within = (*conditions, node.test) if isinstance(node, ast.If) else conditions
    for child in ast.iter_child_nodes(node):
        yield from _carried_on(child, within)


def _attribute(node: ast.expr) -> str | None:
    """The attribute that is changed, itself or an entry of it."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else None


def _read(node: ast.expr) -> set[str]:
    return {ast.unparse(one) for one in ast.walk(node) if isinstance(one, ast.Attribute)}
