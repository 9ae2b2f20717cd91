# SPDX-License-Identifier: Apache-2.0
"""From tokenised articles to sequences of exactly one length, without padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

SHORTEST_PIECE = 8
"""Tokens: a shorter article, or a shorter end of one, is left out; it teaches little and costs a separator."""


@dataclass
class Packer:
    """Cuts articles into sequences ``[CLS] tokens [SEP]`` of ``length`` tokens.

    An article fills as many sequences of its own as it can. What is left at its end is packed with the ends of other
    articles, a ``[SEP]`` between them: only such sequences cross articles, and no sequence is padded.

    Args:
        length: Tokens per sequence with the special ones.
        cls: Id of ``[CLS]``.
        sep: Id of ``[SEP]``.
        special: Ids that masking leaves alone. A sequence of which they make up more than half is left out.

    """

    length: int
    cls: int
    sep: int
    special: frozenset[int]
    _ends: list[int] = field(default_factory=list, init=False)

    @property
    def body(self) -> int:
        """Tokens of text in a sequence."""
        return self.length - 2

    def add(self, tokens: Sequence[int]) -> Iterator[npt.NDArray[np.int64]]:
        """Sequences that are full after adding one article."""
        if len(tokens) < SHORTEST_PIECE:
            return
        whole = len(tokens) - len(tokens) % self.body
        for start in range(0, whole, self.body):
            yield from self._sequence(tokens[start : start + self.body])
        if len(tokens) - whole < SHORTEST_PIECE:
            return
        if self._ends:
            self._ends.append(self.sep)
        self._ends.extend(tokens[whole:])
        while len(self._ends) >= self.body:
            yield from self._sequence(self._ends[: self.body])
            del self._ends[: self.body]
            if self._ends[:1] == [self.sep]:
                del self._ends[0]

    def _sequence(self, tokens: Sequence[int]) -> Iterator[npt.NDArray[np.int64]]:
        if 2 * sum(token in self.special for token in tokens) <= self.length - 4:
            yield np.array([self.cls, *tokens, self.sep], dtype=np.int64)
