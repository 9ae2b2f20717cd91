# SPDX-License-Identifier: Apache-2.0
"""Translation of state dicts whose names are the same on both sides."""

from typing import TypeVar

T = TypeVar("T")


def unchanged(state_dict: T, max_seq_len: int | None = None) -> T:
    """``state_dict`` itself: its names are Hugging Face's."""
    return state_dict
