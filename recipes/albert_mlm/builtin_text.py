# SPDX-License-Identifier: Apache-2.0
"""English prose in every Python installation: the language reference's topics and the standard library's docstrings.

Nothing is imported: sources are parsed, so no module's code runs. The order is that of the file names and then of the
lines in each file, hence the same wherever this Python version is installed.
"""

from __future__ import annotations

import ast
import inspect
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_SKIPPED = frozenset({"__pycache__", "dist-packages", "encodings", "site-packages", "test", "tests"})
"""Folders that are not part of the library, or hold no prose."""

_SHORTEST = 80
"""Minimum characters of a document: a shorter docstring is a label rather than prose."""

_LETTERS = 0.7
"""Minimum share of letters and spaces: a text with less is a table or code."""


def builtin_documents(library: Path | None = None) -> Iterator[str]:
    """Documents of one line each, without duplicates (about 1.7 MB on Python 3.11).

    Args:
        library: Folder of Python sources to read instead of the standard library's.

    """
    folder = library or Path(sysconfig.get_paths()["stdlib"])
    seen: set[str] = set()
    for path in sorted(folder.rglob("*.py")):
        if _SKIPPED.isdisjoint(path.relative_to(folder).parts):
            for text in _texts(path):
                document = _prose(text)
                if document is not None and document not in seen:
                    seen.add(document)
                    yield document


def _texts(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # a file that this Python cannot read, such as a template
    if path.parts[-2:] == ("pydoc_data", "topics.py"):
        yield from _long_strings(tree)
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield text


def _long_strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) >= _SHORTEST:
            yield node.value


def _prose(text: str) -> str | None:
    """``text`` on one line without interpreter sessions; ``None`` if it is not prose."""
    lines = inspect.cleandoc(text).splitlines()
    words = " ".join(line for line in lines if not line.lstrip().startswith((">>>", "..."))).split()
    document = " ".join(words)
    letters = sum(character.isalpha() or character == " " for character in document)
    if len(document) < _SHORTEST or letters < _LETTERS * len(document):
        return None
    return document
