# SPDX-License-Identifier: Apache-2.0
"""Streams the records of JSON that is too large for memory, buffering about as much text as the largest record has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from lightning_sagemaker.recipes._common.data.workbooks import NO_RECORDS, load, sound_json, unique

_AT_ONCE = 1 << 20
_MOST = 1 << 26
"""Maximum characters of a record; without a limit, a syntax error would read the file to its end."""
_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder(object_pairs_hook=unique, parse_constant=lambda _: None)


def stream_json(text: TextIO) -> Iterator[dict[str, Any]]:
    """Records of a JSON array, or of the array ``data`` of an object; an object without it is one record.

    Raises:
        ValueError: If the text is none of these, or a record has a key twice.

    """
    values = _Values(text)
    found = values.array() if values.next() == "[" else values.array_of_object("data")
    for record in found:
        if not isinstance(record, dict):
            raise ValueError(NO_RECORDS)
        yield record
    if values.next():
        raise ValueError("there is more after the end of its records")


def stream_json_lines(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Records of text with an object in each line.

    Raises:
        ValueError: If a line is no object, or one has a key twice.

    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                record = load(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number} is not JSON ({error}). HINT: give an object in each line") from error
            if not isinstance(record, dict):
                raise ValueError(f"line {number} is not an object. HINT: give an object in each line")
            yield record


def holds_records(content: dict[str, Any]) -> bool:
    """Whether an object may be one of columns or of records: several values, which are lists or objects."""
    return len(content) > 1 and all(isinstance(value, dict | list) for value in content.values())


class _Values:
    """Reads JSON values from a stream.

    Args:
        text: Stream to read from its current position on.

    """

    def __init__(self, text: TextIO) -> None:
        self._text, self._buffer, self._place = text, "", 0

    def next(self) -> str:
        """The next non-space character, not consumed; empty at the end."""
        while True:
            space = _SPACE.match(self._buffer, self._place)
            assert space is not None
            self._place = space.end()
            if self._place < len(self._buffer):
                return self._buffer[self._place]
            if not self._more():
                return ""

    def take(self, expected: str) -> None:
        """Consume a character, which must be ``expected``."""
        if self.next() != expected:
            raise ValueError(f"{expected!r} was expected, and {self._buffer[self._place :][:20]!r} found")
        self._place += 1

    def value(self) -> Any:
        """Parse and consume the next value."""
        self.next()
        while True:
            try:
                found, end = _DECODER.raw_decode(self._buffer, self._place)
            except json.JSONDecodeError:
                if len(self._buffer) - self._place > _MOST or not self._more():
                    raise
                continue
            if end == len(self._buffer) and self._more():
                continue  # a number may have more digits
            value = self._buffer[self._place : end]
            self._place = end
            return found if (sound := sound_json(value)) is value else load(sound)

    def array(self) -> Iterator[Any]:
        """The values of an array."""
        self.take("[")
        is_first = True
        while self.next() != "]":
            if not is_first:
                self.take(",")
            is_first = False
            yield self.value()
        self.take("]")

    def array_of_object(self, key: str) -> Iterator[Any]:
        """The values of the array ``key`` in an object; without such an array, the object itself."""
        self.take("{")
        others: dict[str, Any] = {}
        is_found = False
        while self.next() != "}":
            if others or is_found:
                self.take(",")
            name = self.value()
            self.take(":")
            if name == key and self.next() == "[":
                is_found = True
                yield from self.array()
            else:
                others[name] = self.value()
        self.take("}")
        if not is_found and holds_records(others):
            raise ValueError(f"it is large, and an object of {', '.join(map(repr, list(others)[:3]))}; {NO_RECORDS}")
        if not is_found:
            yield others

    def _more(self) -> bool:
        left = self._buffer[self._place :]
        part = self._text.read(max(_AT_ONCE, len(left)))
        self._buffer, self._place = left + part, 0
        return bool(part)
