# SPDX-License-Identifier: Apache-2.0
"""``--help`` of a recipe: the options people use, explained by the comments of its config.yaml; imports no torch."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lightning_sagemaker.recipes._common.cli.arguments import SUBCOMMANDS
from lightning_sagemaker.recipes._common.cli.options import HELP_GROUPS
from lightning_sagemaker.recipes._common.cli.recipe import Recipe

HELP, HELP_ALL = ("--help", "-h"), "--help-all"

_ALWAYS = {
    "config": "configuration file, your own or one of {files}; may be repeated",
    "ckpt_path": "checkpoint to test, to predict with, or to resume from",
    "debug": "show the traceback of an error",
    "help-all": "list all options, Lightning's own included",
}
"""Options that no configuration holds."""

_TYPE = re.compile(r"(?:(?:str|int|float|bool|dict|list|null)(?:, | or )?)+: ")
_ENTRY = re.compile(r"( *)(\w+):\s*(.*)")
_WIDTH = 110


@dataclass(frozen=True)
class Explained:
    """A key of a configuration file.

    Args:
        text: Comment above the key, without the type.
        value: Value as written in the file.

    """

    text: str
    value: str


def explained_keys(path: Path) -> dict[str, Explained]:
    """The keys of a configuration that have a comment above them, by their dotted names."""
    found: dict[str, Explained] = {}
    section, comment = "", ""
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = _ENTRY.match(line)
        if line.lstrip().startswith("#"):
            comment = f"{comment} {line.lstrip()[1:].strip()}".strip()
        elif entry is None:
            comment = ""
        else:
            indent, name, value = entry.groups()
            section = section if indent else ("" if value else f"{name}.")
            if comment and (indent or value):
                found[f"{section if indent else ''}{name}"] = Explained(_TYPE.sub("", comment, count=1), value)
            comment = ""
    return found


def help_text(recipe: Recipe) -> str:
    """The output of ``--help``."""
    width = min(shutil.get_terminal_size((_WIDTH, 24)).columns, _WIDTH)
    config = recipe.folder / "config.yaml"
    title = config.read_text(encoding="utf-8").partition(".")[0].lstrip("# ")
    lines = [
        f"usage: lightning-sagemaker run {recipe.name} [{'|'.join(SUBCOMMANDS)}] [--config FILE] [--OPTION VALUE ...]",
        "",
        *textwrap.wrap(f"{title}. Without a stage: fit. Values in brackets are those of config.yaml.", width),
    ]
    for group, options in _groups(recipe, explained_keys(config)):
        lines += ["", f"{group}:"]
        for name, text in options:
            lines += _option(name, text, width)
    return "\n".join(lines)


def _groups(recipe: Recipe, keys: dict[str, Explained]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    shown: set[str] = set()
    for group, names in HELP_GROUPS.items():
        options = []
        for name in names:
            key = recipe.names.short.get(name, name)
            if key in _ALWAYS:
                files = ", ".join(sorted(path.name for path in recipe.folder.glob("*.yaml")))
                options.append((name, _ALWAYS[key].format(files=files)))
            elif key in keys and key not in shown:
                value = keys[key].value
                options.append((name, keys[key].text + ("" if value in ("null", "{}") else f" [{value}]")))
            shown.add(key)
        yield group, options


def _option(name: str, text: str, width: int) -> list[str]:
    """Name and text in two columns."""
    column = 26
    first, *rest = textwrap.wrap(text, max(20, width - column)) or [""]
    head = f"  --{name}"
    start = [f"{head:<{column}}{first}"] if len(head) < column else [head, " " * column + first]
    return [*start, *(" " * column + line for line in rest)]
