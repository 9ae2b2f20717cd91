# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.dataparallel.torch.parallel``."""

from __future__ import annotations

from lightning_sagemaker.smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
