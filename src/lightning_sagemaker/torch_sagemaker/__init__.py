# SPDX-License-Identifier: Apache-2.0
"""A stand-in for ``torch.sagemaker``, version 2 of SageMaker's model parallel library, on current PyTorch.

Scripts wrap their model in ``FullyShardedDataParallel`` themselves; :func:`init` makes every wrapper follow the job's
shard degree, and :func:`transform` shards a model's matrices by DTensor (tensor parallelism). Context and expert
parallelism, fp8 and mixtures of experts are refused.
"""

from __future__ import annotations

from lightning_sagemaker.torch_sagemaker import grad_norm
from lightning_sagemaker.torch_sagemaker.initialize import init, is_initialized
from lightning_sagemaker.torch_sagemaker.state_handler import state
from lightning_sagemaker.torch_sagemaker.transformed import transform

__version__ = "2.8.0"
"""AWS's release whose documentation this follows."""

__all__ = ["grad_norm", "init", "is_initialized", "state", "transform"]
