# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.modelparallel.torch.patches``."""

from lightning_sagemaker.smdistributed.modelparallel.torch.patches import checkpoint

__all__ = ["checkpoint"]
