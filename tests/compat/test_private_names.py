# SPDX-License-Identifier: Apache-2.0
"""The private names of other libraries that the source touches are those of the tables in ``_compat/``, and exist."""

import ast
import inspect
import re
import textwrap
from functools import cache
from importlib.util import find_spec

import pytest

from lightning_sagemaker import __all__ as public
from lightning_sagemaker._compat import guard, names_lightning, names_others, names_torch
from lightning_sagemaker._lightning import with_packages
from lightning_sagemaker.registry import STRATEGIES
from tests.conftest import ROOT

SOURCE = ROOT / "src" / "lightning_sagemaker"
TABLES = (names_lightning, names_torch, names_others)
OWN_TEXTS = re.compile(
    r"_(agent|fields|find_unused_parameters_\w+|fork|fp32_grad_accumulation|is_sharded|lightning_sagemaker\w*|match_weights"
    r"|netrc|no_tree_spawn|notebook|only_forward|partial|region_of_birth|seconds|smp_\w+|spawn|tuning_objective_metric)"
)
"""Private-looking texts that name nothing of another library: endings, keys, SageMaker's parameters, marks of our own."""


def _is_private(name: str) -> bool:
    return name.isidentifier() and name.startswith("_") and not name.endswith("__") and name.strip("_") != ""


@cache
def _names() -> dict[str, tuple[set[str], set[str]]]:
    """Path of each file -> names that it defines itself, private names that it uses."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if "recipes" not in path.parts and not path.name.startswith("names_"):
            nodes = list(ast.walk(ast.parse(path.read_text())))
            found[str(path.relative_to(SOURCE))] = _defined(nodes), _touched(nodes)
    return found


def _defined(nodes: list[ast.AST]) -> set[str]:
    found = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and getattr(node.value, "id", "") == "self"
        ):
            found.add(node.attr)
    return found


def _stored(kind: type) -> set[str]:
    """Attributes that methods of a class set; properties share their names with those of a base class."""
    return _defined(list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(kind))))))


def _touched(nodes: list[ast.AST]) -> set[str]:
    """Return the private names among them, wherever they are defined."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("lightning_sagemaker"):
            found |= {*(node.module or "").split("."), *(name.name for name in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not OWN_TEXTS.fullmatch(node.value):
            found.add(node.value)
    return {name for name in found if _is_private(name)}


def _listed() -> set[str]:
    owners = {owner for table in TABLES for owner in table.NAMES}
    parts = {part for owner in owners for part in re.split(r"[.:]", owner)}
    return parts | {name for table in TABLES for names in table.NAMES.values() for name in names}


def test_no_other_private_name_is_touched():
    own = {name for defined, _ in _names().values() for name in defined}
    allowed = own | _listed() | {name for table in TABLES for name in table.OPTIONAL} | {"_on_import"}
    others = {path: sorted(touched - allowed) for path, (_, touched) in _names().items()}
    assert {path: names for path, names in others.items() if names} == {}, (
        "private names of other libraries: list each, with its owner, in the library's table, _compat/names_*.py"
    )


def test_no_name_of_the_tables_is_unused():
    used = {name for both in _names().values() for names in both for name in names}
    listed = {name for table in TABLES for names in table.NAMES.values() for name in names if _is_private(name)}
    listed |= {name for table in TABLES for name in table.OPTIONAL}
    assert sorted(listed - used) == [], "the source does not use them: remove them from _compat/names_*.py"


def test_every_private_name_is_there():
    everything = {**with_packages(names_lightning.NAMES), **names_torch.NAMES, **names_others.NAMES}
    missing = {owner for owner in everything if find_spec(owner.partition(".")[0].partition(":")[0]) is None}
    assert {owner.partition(".")[0] for owner in missing} <= {"sagemaker"}  # an extra that the tests do not install
    guard.check({owner: names for owner, names in everything.items() if owner not in missing}, only_loaded=False)


def test_a_name_that_is_gone_is_an_error():
    guard.check({"not.loaded:Kind": ("_name",)})
    for names in ({"torch:Tensor": ("_gone",)}, {"torch:_Gone": ()}, {"torch.nn": ("_gone",)}):
        with pytest.raises(guard.NameGone, match=r"has no '_[gG]one'.*HINT"):
            guard.check(names)
    with pytest.raises(guard.NameGone, match="has no 'gone'"):
        guard.shadow(object(), "gone", print)


def test_private_methods_of_lightning_that_the_strategies_override_are_listed():
    import lightning_sagemaker

    listed, found = _listed(), set()
    kinds = {getattr(lightning_sagemaker, name) for name in public if name.endswith("Strategy")}
    assert len(kinds) >= 8 <= len(STRATEGIES)
    for kind in kinds:
        own = [base for base in kind.__mro__ if base.__module__.startswith("lightning_sagemaker")]
        others = [base for base in kind.__mro__ if base not in own and base is not object]
        names = {name for base in own for name in (*vars(base), *_stored(base))}
        for name in {name for name in names if _is_private(name) and not name.startswith("_abc_")}:
            is_theirs = any(hasattr(base, name) or guard._is_set_by_methods(base, name) for base in others)
            found |= {name} if is_theirs else set()
    assert sorted(found - listed) == [], "the strategies override them: list them in _compat/names_lightning.py"
    assert {"_num_nodes", "_configure_launcher"} <= found
