# SPDX-License-Identifier: Apache-2.0
"""Finds records of delimited text that a quote has joined: one at the beginning of a field that is not quoted.

Each line of such a record looks like a record, and its first or last fields are those of other records, as labels are. In a
quoted field with line breaks that would be a great coincidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

REMEMBERED = 10_000
"""Number of lines whose fields are remembered: labels recur, so the first ones are enough."""


@dataclass
class JoinedRecords:
    """Looks at all records of a file, and knows at its end.

    Args:
        delimiter: Delimiter of its columns.

    """

    delimiter: str
    _first: set[str] = field(default_factory=set)
    _last: set[str] = field(default_factory=set)
    _found: list[tuple[int, int, set[str], set[str]]] = field(default_factory=list)

    def add(self, row: Sequence[str], lines: Sequence[str], number: int) -> None:
        """Look at a record.

        Args:
            row: Its fields.
            lines: Its lines.
            number: Number of its last line in the file.

        """
        if number <= REMEMBERED and row:
            self._first.add(row[0])
            self._last.add(row[-1])
        if len(lines) > 1 and len(row) > 1:
            parts = [line.rstrip("\r\n").split(self.delimiter) for line in lines]
            if all(len(part) == len(row) for part in parts):
                first, last = {part[0] for part in parts[1:]}, {part[-1] for part in parts[:-1]}
                self._found.append((number - len(lines) + 1, number, first, last))

    def check(self) -> None:
        """Refuse joined records.

        Raises:
            ValueError: If there are some.

        """
        for begin, end, first, last in self._found:
            if first <= self._first or last <= self._last:
                raise ValueError(
                    f"a quote in line {begin} is closed in line {end} only, though each of these lines looks like a record."
                    " HINT: quote fields that begin with a quote, and double the quotes inside them"
                )
