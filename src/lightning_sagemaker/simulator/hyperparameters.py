# SPDX-License-Identifier: Apache-2.0
"""Convert between arguments of a command and hyperparameters of a job."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from lightning_sagemaker.simulator.contract import Container
from lightning_sagemaker.simulator.launchers import Program

_OPTION = re.compile(r"--?(?P<name>[A-Za-z_][^=]*)(=(?P<value>.*))?", re.DOTALL)


def with_hyperparameters(
    program: Program, extra: dict[str, object], container: Container
) -> tuple[Program, dict[str, object]]:
    """Append ``extra`` to the command line of ``program``; return the program, and the hyperparameters of both."""
    typed = hyperparameters_of(program.arguments)
    arguments = (*program.arguments, *container.to_arguments(extra))
    return replace(program, arguments=arguments), typed | extra


def hyperparameters_of(arguments: Sequence[str]) -> dict[str, object]:
    """The hyperparameters of a command line of ``--name value`` pairs; positional arguments are ignored."""
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
        return text == "True"  # as the toolkit writes booleans
    try:
        return json.loads(text, parse_constant=_not_json)
    except ValueError:
        return text


def _not_json(name: str) -> None:
    raise ValueError(name)
