# SPDX-License-Identifier: Apache-2.0
"""One question about a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Question:
    """One question.

    Args:
        id: Unlike that of any other.
        question: Its text.
        context: The text with the answer.
        answers: Right answers; none: there is no answer in the context.
        starts: Where each begins in the context, in characters.
        record: As it was read, which goes with the prediction.

    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()
    record: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def misplaced(self) -> bool:
        """Whether an answer does not stand where it should."""
        places = zip(self.answers, self.starts, strict=True)
        return any(self.context[start : start + len(text)] != text or not text for text, start in places)
