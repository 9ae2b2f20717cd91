# SPDX-License-Identifier: Apache-2.0
"""How long a batch is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Padding:
    """How long a batch is.

    Args:
        token: Id that fills up.
        multiple: Lengths are rounded up to a multiple of it.
        limit: No input is longer, and no batch.
        always: Make every batch as long as ``limit``.

    """

    token: int
    multiple: int
    limit: int
    always: bool

    def length(self, longest: int) -> int:
        """Of a batch with that longest input."""
        return self.limit if self.always else min(-(-longest // self.multiple) * self.multiple, self.limit)
