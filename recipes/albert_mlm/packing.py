# SPDX-License-Identifier: Apache-2.0
"""Packs tokenized articles into sequences of exactly one length, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

SHORTEST_PIECE = 8
"""Minimum tokens of an article or of its end; shorter ones are left out: they teach little and cost a separator."""

_MIDDLE = (0.25, 0.75)
"""Where a sequence may be divided into two segments, as shares of its length."""

Integers = npt.NDArray[np.signedinteger[Any]]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Words:
    """Properties of a vocabulary that packing needs.

    Args:
        cls: Id of ``[CLS]``.
        sep: Id of ``[SEP]``.
        special: ``[vocabulary]``, whether each token is special, and so never masked.
        begins: ``[vocabulary]``, whether each token begins a word.
        ends_sentence: ``[vocabulary]``, whether a sentence may end with each token.

    """

    cls: int
    sep: int
    special: Flags
    begins: Flags
    ends_sentence: Flags

    @classmethod
    def of(cls, tokenizer: Any, cls_id: int, sep_id: int, special: Sequence[int]) -> Words:
        """From a ``tokenizers.Tokenizer``: WordPiece marks tokens that continue a word, others those that begin one."""
        size = tokenizer.get_vocab_size(with_added_tokens=True)
        tokens = [tokenizer.id_to_token(number) or "" for number in range(size)]
        is_special = np.zeros(size, dtype=bool)
        is_special[list(special)] = True
        if any(token.startswith("##") for token in tokens):
            begins = [not token.startswith("##") for token in tokens]
        else:
            begins = [token.startswith(("\u2581", "\u0120")) for token in tokens]
        ends = [token.rstrip("\"'\u201d\u2019)").endswith((".", "!", "?")) for token in tokens]
        return cls(cls_id, sep_id, is_special, np.array(begins) | is_special, np.array(ends) & ~is_special)


@dataclass
class Packer:
    """Packs articles into the bodies of sequences, of ``body`` tokens each.

    An article fills as many sequences of its own as it can. Its remaining tokens are packed with those of other
    articles, a ``[SEP]`` between them: only such sequences cross articles, and no sequence is padded.

    Args:
        body: Tokens of a sequence without the special tokens around them.
        sep: Id of ``[SEP]``.

    """

    body: int
    sep: int
    _full: list[Integers] = field(default_factory=list, init=False)
    _ends: list[Integers] = field(default_factory=list, init=False)
    _waiting: int = field(default=0, init=False)

    def add(self, tokens: Sequence[int]) -> None:
        """Add one article."""
        if len(tokens) < SHORTEST_PIECE:
            return
        article = np.asarray(tokens, dtype=np.int32)
        whole = len(article) - len(article) % self.body
        if whole:
            self._full.append(article[:whole].reshape(-1, self.body))
        if len(article) - whole >= SHORTEST_PIECE:
            self._pack(article[whole:])

    def _pack(self, end: Integers) -> None:
        if self._waiting:
            end = np.concatenate([np.array([self.sep], dtype=np.int32), end])
        self._ends.append(end)
        self._waiting += len(end)
        while self._waiting >= self.body:
            joined = np.concatenate(self._ends)
            self._full.append(joined[None, : self.body])
            rest = joined[self.body :]
            rest = rest[1:] if len(rest) and rest[0] == self.sep else rest
            self._ends, self._waiting = [rest], len(rest)

    def sequences(self) -> Integers:
        """Return all full bodies so far, in order, and clear them: ``[sequences, body]``."""
        full, self._full = self._full, []
        return np.concatenate(full) if full else np.zeros((0, self.body), dtype=np.int32)


def one_segment(bodies: Integers, words: Words) -> Integers:
    """``[CLS] body [SEP]``; a sequence that is mostly special tokens is left out."""
    return _frame(_without_empty(bodies, words), words)


def two_segments(bodies: Integers, words: Words) -> tuple[Integers, Integers]:
    """``[CLS] first [SEP] second [SEP]``, divided where a sentence begins, as near to the middle as possible.

    Where no sentence begins in the middle half, at a word; where none does, in the middle.

    Returns:
        ``[sequences, body + 3]``, and the number of tokens of each first segment ``[sequences]``.

    """
    bodies = _without_empty(bodies, words)
    length = bodies.shape[1]
    place = np.arange(1, length)
    inside = ~words.special[bodies]
    word = words.begins[bodies[:, 1:]] & inside[:, 1:] & inside[:, :-1]
    sentence = word & words.ends_sentence[bodies[:, :-1]]
    central = (place >= _MIDDLE[0] * length) & (place <= _MIDDLE[1] * length)
    # A sentence anywhere in the middle half is preferred to a word, and a word to any token.
    penalty = np.where(sentence & central, 0, np.where(word & central, length, 2 * length))
    first = 1 + np.argmin(np.abs(place - length // 2) + penalty, axis=1)
    after = np.arange(length + 1)
    moved = np.take_along_axis(bodies, np.minimum(after - (after > first[:, None]), length - 1), axis=1)
    divided = np.where(after == first[:, None], words.sep, moved)
    return _frame(divided, words), first


def swap_segments(rows: Integers, first: Integers) -> tuple[Integers, Integers]:
    """The two segments of each row in the other order, and the lengths of those that are now first."""
    second = rows.shape[1] - 3 - first
    place = np.arange(rows.shape[1])[None, :]
    begin = second[:, None]
    source = np.where(place <= begin, place + first[:, None] + 1, place - begin - 1)
    # [CLS] and the separators keep their positions.
    source = np.where(place == 0, 0, np.where(place == begin + 1, rows.shape[1] - 1, source))
    source = np.where(place == rows.shape[1] - 1, place, source)
    return np.take_along_axis(rows, source, axis=1), second


def _without_empty(bodies: Integers, words: Words) -> Integers:
    kept: Integers = bodies[2 * words.special[bodies].sum(axis=1) <= bodies.shape[1] - 2]
    return kept


def _frame(bodies: Integers, words: Words) -> Integers:
    framed = np.empty((len(bodies), bodies.shape[1] + 2), dtype=np.int32)
    framed[:, 0], framed[:, 1:-1], framed[:, -1] = words.cls, bodies, words.sep
    return framed
