# SPDX-License-Identifier: Apache-2.0
"""A configuration is read as it was meant, or refused: of a key that is set twice, YAML silently keeps the last value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lightning_sagemaker.errors import CommandError

_SECTIONS = ("trainer", "model", "data")
"""Keys that hold keys and values."""


def check_configs(words: Sequence[str]) -> None:
    """Check the files of the words ``--config=FILE``; a missing one is left to the parser.

    Raises:
        CommandError: If a file is not YAML with keys and values, or sets a key twice.

    """
    for word in words:
        option, _, path = word.partition("=")
        if option == "--config" and Path(path).is_file():
            _check(Path(path))


def _check(path: Path) -> None:
    import yaml

    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise CommandError(f"{path} cannot be read: {error}. HINT: give YAML, in UTF-8 and without tabs.") from error
    if not isinstance(root, yaml.MappingNode):
        raise CommandError(f"{path} does not hold keys and values. HINT: write, for example, `max_steps: 100`.")
    for key, first in _repeated(root):
        raise CommandError(
            f"{path} sets {key.value!r} in line {first.start_mark.line + 1} and again in line {key.start_mark.line + 1}."
            " HINT: set it once."
        )
    for key, value in root.value:
        if key.value in _SECTIONS and not (isinstance(value, yaml.MappingNode) or _is_file_or_nothing(value, path)):
            raise CommandError(
                f"{path} sets {key.value!r} to {value.value!r}. HINT: it holds keys and values, each in a line below it."
            )


def _is_file_or_nothing(value: Any, config: Path) -> bool:
    """Whether a section names another file with its keys, or is not set."""
    if not isinstance(value.value, str):
        return False
    return value.tag.endswith(":null") or Path(value.value).is_file() or (config.parent / value.value).is_file()


def _repeated(root: Any) -> Iterator[tuple[Any, Any]]:
    """Keys that their mapping has before, each with the earlier one."""
    import yaml

    seen, waiting = {id(root)}, [root]
    while waiting:
        node = waiting.pop()
        names: dict[Any, Any] = {}
        for item in node.value:
            key, value = item if isinstance(node, yaml.MappingNode) else (None, item)
            if isinstance(key, yaml.ScalarNode):
                if key.value in names:
                    yield key, names[key.value]
                names.setdefault(key.value, key)
            if isinstance(value, yaml.CollectionNode) and id(value) not in seen:  # an alias may refer to its parent
                seen.add(id(value))
                waiting.append(value)
