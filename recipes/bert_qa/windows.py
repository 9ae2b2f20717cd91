# SPDX-License-Identifier: Apache-2.0
"""Cuts contexts that are longer than the model's inputs into overlapping windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_sagemaker.recipes._common.data.tables import DataError

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Template:
    """How a tokenizer joins question and context: ``before question between context after``.

    Args:
        before: Ids of special tokens, the first of which stands for "no answer".
        between: Ids of special tokens.
        after: Ids of special tokens.
        types: Token types of question and context, each including the special tokens that follow.

    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    types: tuple[int, int]

    @property
    def num_special(self) -> int:
        """Number of special tokens."""
        return len(self.before) + len(self.between) + len(self.after)

    @classmethod
    def of(cls, tokenizer: Any) -> Template:
        """The template of a tokenizer, found by trying."""
        tried = tokenizer("a", "b", return_token_type_ids=True)
        parts, ids = tried.sequence_ids(0), tried["input_ids"]
        first, last = parts.index(0), len(parts) - 1 - parts[::-1].index(0)
        second, end = parts.index(1), len(parts) - 1 - parts[::-1].index(1)
        types = tried["token_type_ids"]
        return cls(tuple(ids[:first]), tuple(ids[last + 1 : second]), tuple(ids[end + 1 :]), (types[0], types[second]))


@dataclass(frozen=True)
class Windows:
    """Windows of a split, in the order of its questions.

    Args:
        question: ``[windows]``, number of the question.
        start: ``[windows]``, first token of the context.
        end: ``[windows]``, one after the last token.

    """

    question: Integers
    start: Integers
    end: Integers

    def __len__(self) -> int:
        return len(self.question)


def cut_windows(questions: Integers, contexts: Integers, num_special: int, max_length: int, stride: int) -> Windows:
    """Cut each context into windows of which neighbors share ``stride`` tokens.

    Args:
        questions: ``[questions]``, number of tokens of each question.
        contexts: ``[questions]``, number of tokens of its context.
        num_special: Number of special tokens in each input.
        max_length: Maximum tokens of an input.
        stride: Number of shared tokens.

    Raises:
        DataError: If a question leaves no more than ``stride`` tokens for its context.

    """
    room = max_length - num_special - questions
    if len(room) and np.min(room) <= stride:
        raise DataError(
            f"data.max_seq_length={max_length} and data.doc_stride={stride} were set, but the longest question leaves"
            f" room for {np.min(room)} tokens of the context. HINT: lower data.doc_stride or data.max_query_length."
        )
    step = room - stride
    counts = 1 + np.maximum(0, -(-(contexts - room) // step))
    question = np.repeat(np.arange(len(questions)), counts)
    number = np.arange(len(question)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = number * step[question]
    return Windows(question, start, np.minimum(start + room[question], contexts[question]))


def answer_labels(windows: Windows, first: Integers, last: Integers, context_start: Integers) -> Integers:
    """Positions of the answer's first and last token in each input; 0, a special token, if it is not fully there.

    Args:
        windows: Windows of the split.
        first: ``[questions]``, first token of the answer in its context, -1 without one.
        last: ``[questions]``, its last token.
        context_start: ``[windows]``, position in the input of the window's first token.

    Returns:
        ``[windows, 2]``.

    """
    first, last = first[windows.question], last[windows.question]
    inside = (first >= windows.start) & (last < windows.end) & (first >= 0)
    places = np.stack([first, last], axis=1) + (context_start - windows.start)[:, None]
    return np.where(inside[:, None], places, 0)
