# SPDX-License-Identifier: Apache-2.0
"""Texts with some tokens hidden: a model from scratch learns not to rely on single words (word dropout)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class TokenDropout:
    """Replaces tokens by the mask token, or the unknown one where there is none.

    Args:
        share: Chance of each token that is not special.
        tokenizer: Tokenizer of the texts.

    """

    def __init__(self, share: float, tokenizer: Any) -> None:
        self._share = share
        mask = tokenizer.mask_token_id
        self._mask: int = tokenizer.unk_token_id if mask is None else mask
        self._special = torch.tensor(sorted(set(tokenizer.all_special_ids)))

    def __call__(self, input_ids: Tensor) -> Tensor:
        """``[batch, length]``, other tokens hidden at each call."""
        self._special = self._special.to(input_ids.device)
        hidden = torch.rand(input_ids.shape, device=input_ids.device) < self._share
        return input_ids.masked_fill(hidden & ~torch.isin(input_ids, self._special), self._mask)
