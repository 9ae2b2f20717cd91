# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.modelparallel.backend.exceptions``, which SageMaker's toolkit lists to tell errors apart."""

from lightning_sagemaker.parallel.degrees import PipelineError

__all__ = ["PipelineError"]
