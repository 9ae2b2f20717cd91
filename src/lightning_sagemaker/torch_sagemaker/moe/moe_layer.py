# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.moe.moe_layer``: a name for ``isinstance`` and wrapping policies."""

from __future__ import annotations

from lightning_sagemaker.torch_sagemaker.refusal import Refused


class MoELayer(Refused):
    """Refused."""
