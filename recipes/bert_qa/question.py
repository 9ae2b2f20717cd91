# SPDX-License-Identifier: Apache-2.0
"""A question about a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Question:
    """A question.

    Args:
        id: Unique identifier.
        question: Text of the question.
        context: The text with the answer.
        answers: Right answers; empty: there is no answer in the context.
        starts: Start of each answer in the context, in characters.
        record: Record as it was read, which is written with the prediction.

    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()
    record: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def misplaced(self) -> bool:
        """Whether an answer is empty, or not at its start in the context; a negative one does not count from the end."""
        places = zip(self.answers, self.starts, strict=True)
        return any(start < 0 or self.context[start : start + len(text)] != text or not text for text, start in places)
