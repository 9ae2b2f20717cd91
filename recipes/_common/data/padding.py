# SPDX-License-Identifier: Apache-2.0
"""Padding of batches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Padding:
    """How batches are padded.

    Args:
        token: Id of the padding token.
        multiple: Lengths are rounded up to a multiple of this many tokens.
        limit: Maximum tokens of an input, and of a batch.
        always: Whether to pad every batch to ``limit``.

    """

    token: int
    multiple: int
    limit: int
    always: bool

    def length(self, longest: int) -> int:
        """Padded length of a batch whose longest input has ``longest`` tokens."""
        return self.limit if self.always else min(-(-longest // self.multiple) * self.multiple, self.limit)
