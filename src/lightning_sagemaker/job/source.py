# SPDX-License-Identifier: Apache-2.0
"""Typed access to the variables of a process and the files of a container, with one clear error for each invalid value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from lightning_sagemaker.job.types import SageMakerJobError

T = TypeVar("T")

_KINDS: dict[type, str] = {dict: "a JSON object", list: "a JSON list"}

_SHOWN = 200
"""Maximum characters of an invalid value that an error quotes."""

_LAST_PORT = 65535


class Source:
    """The source of a job; records where each field came from.

    Args:
        env: The process's variables.
        root: The container's base folder, ``/opt/ml`` on SageMaker.

    Attributes:
        origins: Field of the job -> the variable or file that it came from.
        notes: One sentence for each contradiction that was resolved.
        by_hand: A launcher's variables that are set, if they are too few to determine the world size.

    """

    def __init__(self, env: Mapping[str, str], root: Path) -> None:
        self.env = env
        self.root = root
        self.origins: dict[str, str] = {}
        self.notes: list[str] = []
        self.by_hand: dict[str, int] = {}

    def found(self, field: str, origin: str, value: T) -> T:
        """Record where ``field`` came from; return ``value``."""
        self.origins[field] = origin
        return value

    def text(self, name: str) -> str | None:
        """A variable, stripped; None when it is absent or empty."""
        return self.env.get(name, "").strip() or None

    def integer(self, name: str, minimum: int = 0) -> int | None:
        """A variable that holds an integer; None when it is absent or empty.

        Raises:
            SageMakerJobError: If it is not an integer, less than ``minimum``, or no port although its name says so.

        """
        text = self.text(name)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        is_port = name.endswith("_PORT")
        if value < minimum or (is_port and value > _LAST_PORT):
            wanted = f"from {minimum} to {_LAST_PORT}" if is_port else f">= {minimum}"
            raise SageMakerJobError(f"{name}={_quote(text)} is not an integer {wanted}. HINT: correct or unset {name}.")
        return value

    def json(self, name: str, kind: type[T]) -> T | None:
        """A variable that holds JSON of one kind (``dict`` or ``list``); None when it is absent or empty.

        Raises:
            SageMakerJobError: If it does not parse, or is of another kind.

        """
        text = self.text(name)
        return None if text is None else _decode(text, name, kind, f"correct or unset {name}")

    def names(self, name: str) -> tuple[str, ...] | None:
        """A variable that holds a JSON list of names.

        Raises:
            SageMakerJobError: If the variable does not hold one.

        """
        value = self.json(name, list)
        return None if value is None else check_names(value, name)

    def file(self, name: str) -> dict[str, object] | None:
        """The object in ``input/config/NAME.json``; None when there is no such file.

        Raises:
            SageMakerJobError: If it cannot be read or does not hold an object.

        """
        path = self.root / "input" / "config" / f"{name}.json"
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise SageMakerJobError(
                f"{path} cannot be read: {error}. HINT: make it readable, or set SAGEMAKER_BASE_DIR to the right"
                " folder."
            ) from error
        return _decode(text, str(path), dict, "correct or remove the file")


def check_names(value: object, where: str) -> tuple[str, ...]:
    """``value`` as a tuple of different, non-empty names.

    Raises:
        SageMakerJobError: If it is anything else.

    """
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise SageMakerJobError(f"{where} holds {_quote(value)}. HINT: it must be a list of names.")
    if len(set(value)) < len(value):
        raise SageMakerJobError(f"{where} holds {_quote(value)}. HINT: its names must be unique.")
    return tuple(value)


def decode_or_keep(text: object) -> object:
    """A hyperparameter's value, decoded if it is JSON, else as text."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def is_true(value: object) -> bool:
    """Whether a flag is set: real booleans, numbers, and their spellings."""
    return value.strip().lower() in ("true", "1", "yes") if isinstance(value, str) else bool(value)


def _decode(text: str, where: str, kind: type[T], hint: str) -> T:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SageMakerJobError(f"{where} is not valid JSON ({error}): {_quote(text)}. HINT: {hint}.") from error
    if not isinstance(value, kind):
        raise SageMakerJobError(f"{where} must hold {_KINDS[kind]}, but is {_quote(text)}. HINT: {hint}.")
    return value


def _quote(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
