# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.nn.attn``, over torch's scaled dot product attention."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from lightning_sagemaker.torch_sagemaker.refusal import Refused


class FlashSelfAttention(nn.Module):
    """Self-attention by the fastest kernel that torch has for the device.

    Args:
        attention_dropout_prob: Probability of dropping an attention weight in training.
        scale: Factor of the attention scores; default ``1 / sqrt(head size)``.
        triton_flash_attention: Without effect.
        use_alibi: Refused.

    Raises:
        ParallelConfigError: With ``use_alibi``.

    """

    def __init__(
        self,
        attention_dropout_prob: float = 0.0,
        scale: float | None = None,
        triton_flash_attention: bool = False,
        use_alibi: bool = False,
    ) -> None:
        if use_alibi:
            FlashGroupedQueryAttention()
        super().__init__()
        self.dropout, self.scale = attention_dropout_prob, scale

    def forward(self, qkv: Tensor, attn_mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Compute the attention.

        Args:
            qkv: Queries, keys and values, ``(batch, length, 3, heads, head size)``.
            attn_mask: Float mask added to the scores, or boolean mask, true where attention is allowed.
            causal: Whether positions attend only to themselves and earlier ones.

        Returns:
            ``(batch, length, heads, head size)``.

        """
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        found = F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout, is_causal=causal, scale=self.scale
        )
        return found.transpose(1, 2)


class FlashGroupedQueryAttention(Refused):
    """Refused."""

    instead = "transformers' attn_implementation='sdpa'"
