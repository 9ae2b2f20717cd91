# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.modelparallel.torch.nn``: AWS's own layers, in whose place transformers' are shared."""

from __future__ import annotations

from typing import Any

from torch import nn

from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.smdistributed.modelparallel.torch.nn import huggingface


class FusedLayerNorm(nn.LayerNorm):
    """torch's; scripts only ask whether a module is one."""


class DistributedModule(nn.Module):
    """Base class of the distributed modules.

    Raises:
        ParallelConfigError: When a subclass of this module is built.

    """

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ParallelConfigError(
            f"smp.nn.{type(self).__name__} was built, a layer of AWS's own that is not here."
            " HINT: build transformers' own module instead, within smp.tensor_parallelism()."
        )


class DistributedLinear(DistributedModule):
    """Refused."""


class DistributedEmbedding(DistributedModule):
    """Refused."""


class DistributedAttentionLayer(DistributedModule):
    """Refused."""


class DistributedTransformer(DistributedModule):
    """Refused."""


class DistributedTransformerLayer(DistributedModule):
    """Refused."""


class DistributedTransformerLMHead(DistributedModule):
    """Refused."""


class DistributedTransformerOutputLayer(DistributedModule):
    """Refused."""


class FlashAttentionLayer(DistributedModule):
    """Refused."""


__all__ = [
    "DistributedAttentionLayer",
    "DistributedEmbedding",
    "DistributedLinear",
    "DistributedModule",
    "DistributedTransformer",
    "DistributedTransformerLMHead",
    "DistributedTransformerLayer",
    "DistributedTransformerOutputLayer",
    "FlashAttentionLayer",
    "FusedLayerNorm",
    "huggingface",
]
