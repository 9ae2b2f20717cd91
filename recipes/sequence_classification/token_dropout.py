# SPDX-License-Identifier: Apache-2.0
"""Masks some tokens in training, so that a model from scratch does not rely on single words (word dropout)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class TokenDropout:
    """Replaces tokens by the mask token, or by the unknown token if the tokenizer has no mask token.

    Args:
        share: Probability of each token that is not special to be replaced.
        tokenizer: Tokenizer of the texts.

    """

    def __init__(self, share: float, tokenizer: Any) -> None:
        self._share = share
        mask = tokenizer.mask_token_id
        self._mask: int = tokenizer.unk_token_id if mask is None else mask
        self._special = torch.tensor(sorted(set(tokenizer.all_special_ids)))

    def __call__(self, input_ids: Tensor) -> Tensor:
        """``input_ids`` ``[batch, length]`` with random tokens replaced, different ones at each call."""
        self._special = self._special.to(input_ids.device)
        hidden = torch.rand(input_ids.shape, device=input_ids.device) < self._share
        return input_ids.masked_fill(hidden & ~torch.isin(input_ids, self._special), self._mask)
