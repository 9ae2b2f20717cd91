# SPDX-License-Identifier: Apache-2.0
"""The blocks of code in Markdown pages: which are run, which are marked as not run and why, and what else there is.

A block is marked by a comment before it, which no reader sees::

    <!-- not run: needs an AWS account -->
    <!-- not run, lines 2 and 4: needs a download -->

Blocks of other languages, and what a program printed, are not run and not marked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REASONS = (
    "installs packages",
    "needs a download",
    "needs an AWS account",
    "needs root",
    "needs several hosts",
    "takes minutes",
)
RUN = ("lightning-sagemaker", "python")
"""Programs that `make test-docs` runs."""

_PROGRAMS = (*RUN, "aws", "git", "pip", "sudo", "tensorboard", "torchrun")
"""Not make: CI runs its own target, and tests/docs/test_documents.py sees that the others exist."""

_BLOCK = re.compile(r"((?:^<!-- not run[^\n]*-->\n)*)^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- not run(?:, lines? ([\d, and]+))?: (.*?) -->")


@dataclass(frozen=True)
class Block:
    """One block of code.

    Args:
        page: Path of the page in the repository.
        line: Of its first line of code, from 1.
        language: As after the fence; may be empty.
        code: Its text.
        marks: Pairs of lines (empty for all) and the reason why they are not run.

    """

    page: str
    line: int
    language: str
    code: str
    marks: tuple[tuple[frozenset[int], str], ...]

    @property
    def is_python(self) -> bool:
        return self.language == "python"

    @property
    def is_marked(self) -> bool:
        """Whether none of it is run."""
        return any(not lines for lines, _ in self.marks)

    @property
    def commands(self) -> dict[int, str]:
        """Commands by line of the block, from 1; none where it shows what something printed, or data."""
        if self.language not in ("", "bash", "console"):
            return {}
        lines = {number: line.strip() for number, line in enumerate(self.code.splitlines(), 1)}
        if any(line.startswith("$ ") for line in lines.values()):
            lines = {number: line[2:] for number, line in lines.items() if line.startswith("$ ")}
        return {number: line for number, line in lines.items() if line.split(" ")[0] in _PROGRAMS}

    @property
    def left(self) -> dict[int, str]:
        """The commands that are run."""
        marked = {number for lines, _ in self.marks for number in lines}
        return (
            {} if self.is_marked else {number: line for number, line in self.commands.items() if number not in marked}
        )

    @property
    def is_run(self) -> bool:
        """Whether `make test-docs` runs any of it."""
        return not self.is_marked and (self.is_python or bool(self.left))


def read(root: Path, page: str) -> list[Block]:
    """The blocks of a page.

    Args:
        root: Of the repository.
        page: Path in it.

    """
    text = (root / page).read_text()
    blocks = []
    for match in _BLOCK.finditer(text):
        marks = tuple(
            (frozenset(map(int, re.findall(r"\d+", lines or ""))), reason) for lines, reason in _MARK.findall(match[1])
        )
        blocks.append(Block(page, text[: match.start(3)].count("\n") + 1, match[2], match[3], marks))
    return blocks
