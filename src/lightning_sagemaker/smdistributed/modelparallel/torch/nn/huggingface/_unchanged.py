# SPDX-License-Identifier: Apache-2.0
"""The translation of names that need none."""

from typing import Any


def unchanged(state_dict: Any, max_seq_len: int | None = None) -> Any:
    """``state_dict`` itself: its names are Hugging Face's."""
    return state_dict
