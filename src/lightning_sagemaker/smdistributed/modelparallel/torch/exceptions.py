# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.modelparallel.torch.exceptions``, which SageMaker's toolkit lists to tell errors apart."""

from lightning_sagemaker.parallel.degrees import ParallelConfigError, PipelineError

__all__ = ["ParallelConfigError", "PipelineError"]
