# SPDX-License-Identifier: Apache-2.0
"""Translates the command line that SageMaker makes of hyperparameters into LightningCLI's."""

from __future__ import annotations

import difflib
import json
import logging
import re
from argparse import ArgumentError
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lightning_sagemaker.errors import nearest

SUBCOMMANDS = ("fit", "validate", "test", "predict")

_LIGHTNING_CLI_NAMES = frozenset({"config", "print_config", "help", "seed_everything", "ckpt_path", "weights_only"})
"""LightningCLI's own option names without a dot."""

_NOT_OURS = frozenset({"mp_parameters"})
"""Read from the environment by the strategies; SageMaker repeats them on the command line."""

_log = logging.getLogger(__name__)


class ArgumentNameError(ValueError):
    """An option that the recipe does not have."""


class RepeatedOptionError(ValueError):
    """An option with two values."""


class EmptyOptionError(ValueError):
    """An option with a value of no characters."""


@dataclass(frozen=True)
class Names:
    """The option names that a recipe understands.

    Args:
        short: Short name -> LightningCLI key, such as ``{"max_steps": "trainer.max_steps"}``.
        own: The recipe's own options without a dot, passed on unchanged.

    """

    short: Mapping[str, str]
    own: frozenset[str] = field(default_factory=frozenset)

    def resolve(self, name: str) -> str:
        """The LightningCLI key for ``name``.

        Raises:
            ArgumentNameError: If ``name`` is unknown; the message has the nearest name.

        """
        if "." in name or name in _LIGHTNING_CLI_NAMES or name in self.own:
            return name
        if name in self.short:
            return self.short[name]
        known = sorted({*self.short, *self.own, *_LIGHTNING_CLI_NAMES})
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        raise ArgumentNameError(
            f"--{name} was set, but this recipe has no such option."
            f" HINT: the nearest name is --{nearest[0]}; LightningCLI's dotted names (--trainer.max_steps) work too."
        )


def normalize(arguments: Sequence[str], names: Names, folder: Path) -> list[str]:
    """Translate the command line of a user or of SageMaker into LightningCLI's.

    A missing subcommand becomes ``fit``; short names become dotted keys; the words ``True`` and ``"true"`` become
    ``true``; ``--mp_parameters`` is dropped; a configuration is looked up by bare name in the recipe's folder; without
    any, ``config.yaml`` there is used. Configurations come first, in the given order, so options override them wherever
    they stand. The order of the options does not matter, except of those that append to a list.

    Args:
        arguments: Words such as ``sys.argv[1:]``.
        names: The recipe's option names.
        folder: The recipe's folder, which holds its configurations.

    Raises:
        ArgumentNameError: On an unknown option.
        RepeatedOptionError: If an option is set twice, under any of its names, with different values.
        EmptyOptionError: If an option is set to an empty text.

    """
    arguments = list(arguments)
    if arguments in (["--help"], ["-h"]):
        return arguments
    subcommand = "fit"
    if arguments and arguments[0] in SUBCOMMANDS:
        subcommand = arguments.pop(0)
    configs: list[str] = []
    words: list[str] = []
    options: list[_Option] = []
    for name, value in _options(arguments):
        if name is None:
            words.append(value or "")
        elif name in _NOT_OURS:
            _log.debug("--%s is read from the environment, not from the command line", name)
        elif value is not None and not _plain(value):  # of a variable of a shell that is not set
            raise EmptyOptionError(f"--{name} was set to an empty text. HINT: give a value, or leave the option out.")
        elif name in ("config", "c") and value is not None:
            configs.append(f"--config={_find_config(value, folder)}")
        else:
            key = names.resolve(name)
            if value is None and name in names.short:
                value = "true"
            options.append(_Option(name, key, None if value is None else _plain(value)))
    configs = configs or [f"--config={folder / 'config.yaml'}"]
    return [subcommand, *configs, *(option.word for option in _in_order(options)), *words]


def explained(error: ArgumentError, known: Iterable[str]) -> ArgumentError | ArgumentNameError:
    """``error``, or if it is that a dotted option is unknown, one with the nearest of the ``known`` ones."""
    unknown = re.match(r"unrecognized arguments: --([\w.]+)", str(error))
    near = nearest(unknown[1], known) if unknown else None
    if unknown is None or near is None:
        return error
    return ArgumentNameError(f"--{unknown[1]} is not an option of this recipe. HINT: did you mean --{near}?")


@dataclass(frozen=True)
class _Option:
    """One option of the command line.

    Args:
        written: Name as the user wrote it.
        key: LightningCLI's name.
        value: Value as text; ``None``: a flag.

    """

    written: str
    key: str
    value: str | None

    @property
    def word(self) -> str:
        return f"--{self.key}" if self.value is None else f"--{self.key}={self.value}"

    def is_below(self, keys: Iterable[str]) -> bool:
        return any(self.key == key or self.key.startswith(f"{key}.") for key in keys)


def _in_order(options: Sequence[_Option]) -> list[_Option]:
    """Put ``--trainer.logger X`` before ``--trainer.logger.name Y``, which sets an argument of ``X``.

    Options that append to a list (``--trainer.callbacks+=X``) may be repeated, and stay in the order in which they were
    written.
    """
    lists = {option.key.rstrip("+") for option in options if option.key.endswith("+")}
    appended = [option for option in options if option.is_below([*lists, *(f"{name}+" for name in lists)])]
    others = [option for option in options if option not in appended]
    _check_repeated(others)
    return [*sorted(others, key=lambda option: option.key.count(".")), *appended]


def _check_repeated(options: Iterable[_Option]) -> None:
    first: dict[str, _Option] = {}
    for option in options:
        earlier = first.setdefault(option.key, option)
        if not _is_same(earlier.value, option.value):
            raise RepeatedOptionError(
                f"--{earlier.written} {earlier.value} and --{option.written} {option.value} were set, but both set"
                f" {option.key}. HINT: give it once."
            )


def _is_same(one: str | None, other: str | None) -> bool:
    if one is None or other is None or one == other:
        return one == other
    try:
        return float(one) == float(other)
    except ValueError:
        return False


def _options(arguments: list[str]) -> Iterator[tuple[str | None, str | None]]:
    """Pairs of name and value; the name is ``None`` for a word that belongs to no option."""
    position = 0
    while position < len(arguments):
        word = arguments[position]
        position += 1
        if word == "-c":
            word = "--config"
        if not word.startswith("--"):
            yield None, word
        elif "=" in word:
            name, value = word[2:].split("=", 1)
            yield name, value
        elif position < len(arguments) and not arguments[position].startswith("--"):
            yield word[2:], arguments[position]
            position += 1
        else:
            yield word[2:], None


def _plain(value: str) -> str:
    """``value`` without the quotes of a JSON string, and Python's words in YAML's spelling."""
    if len(value) > 1 and value[0] == value[-1] == '"':
        try:
            decoded = json.loads(value)
        except ValueError:
            return value
        value = decoded if isinstance(decoded, str) else value
    return {"True": "true", "False": "false", "None": "null"}.get(value, value)


def _find_config(value: str, folder: Path) -> str:
    value = _plain(value)
    for candidate in (Path(value), folder / value, folder / f"{value}.yaml"):
        if candidate.is_file():
            return str(candidate)
    return value
