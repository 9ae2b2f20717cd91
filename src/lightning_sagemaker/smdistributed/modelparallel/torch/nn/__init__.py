# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.modelparallel.torch.nn``: AWS's layers; instead of most, transformers' layers are sharded."""

from __future__ import annotations

from torch import nn

from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.smdistributed.modelparallel.torch.nn import huggingface
from lightning_sagemaker.smdistributed.modelparallel.torch.nn.layers import (
    DistributedEmbedding,
    DistributedLinear,
    DistributedModule,
)


class FusedLayerNorm(nn.LayerNorm):
    """torch's ``LayerNorm``, under the name that scripts use in ``isinstance``."""


class _Refused(DistributedModule):
    """A layer whose computation AWS does not document.

    Raises:
        ParallelConfigError: When it is built.

    """

    def __init__(self, *_: object, **__: object) -> None:
        raise ParallelConfigError(
            f"smp.nn.{type(self).__name__} was built, an AWS layer that is not available here. HINT:"
            " build the transformers module instead, within smp.tensor_parallelism()."
        )


class DistributedAttentionLayer(_Refused):
    """Refused."""


class DistributedTransformer(_Refused):
    """Refused."""


class DistributedTransformerLayer(_Refused):
    """Refused."""


class DistributedTransformerLMHead(_Refused):
    """Refused."""


class DistributedTransformerOutputLayer(_Refused):
    """Refused."""


class FlashAttentionLayer(_Refused):
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
