# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.nn.huggingface.llama_flashattn``."""

from __future__ import annotations

from lightning_sagemaker.torch_sagemaker.refusal import Refused


class LlamaFlashAttention(Refused):
    """Refused."""

    instead = "transformers' attn_implementation='sdpa' in the configuration of the model"
