# SPDX-License-Identifier: Apache-2.0
"""Arguments of a command as a job's hyperparameters."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

from lightning_sagemaker.simulator.launchers import Program

_OPTION = re.compile(r"--?(?P<name>[A-Za-z_][^=]*)(=(?P<value>.*))?", re.DOTALL)


def with_hyperparameters(
    program: Program, extra: dict[str, object], module: ModuleType
) -> tuple[Program, dict[str, object]]:
    """Add ``extra`` hyperparameters to the command line of ``program``, and read the others from it."""
    typed = hyperparameters_of(program.arguments)
    arguments = (*program.arguments, *module.to_arguments(extra))
    return replace(program, arguments=arguments), typed | extra


def hyperparameters_of(arguments: Sequence[str]) -> dict[str, object]:
    """The hyperparameters that a command line of ``--name value`` pairs stands for; positional arguments are none."""
    found: dict[str, object] = {}
    waiting: str | None = None
    for argument in arguments:
        option = _OPTION.fullmatch(argument)
        if option is None:
            if waiting is not None:
                found[waiting] = _decode(argument)
            waiting = None
            continue
        name, value = option["name"], option["value"]
        found[name] = True if value is None else _decode(value)
        waiting = name if value is None else None
    return found


def _decode(text: str) -> object:
    if text in ("True", "False"):
        return text == "True"  # the words that the toolkit writes for booleans
    try:
        return json.loads(text, parse_constant=_not_json)
    except ValueError:
        return text


def _not_json(name: str) -> None:
    raise ValueError(name)
