# SPDX-License-Identifier: Apache-2.0
"""Running a job: here, on simulated hosts.

Nothing in this package imports torch, Lightning or the SageMaker SDK at module level.
"""

from __future__ import annotations

from lightning_sagemaker.launch.contract import LocalClusterError
from lightning_sagemaker.launch.local import LocalResult, run_local_cluster
from lightning_sagemaker.launch.processes import Failure

__all__ = ["Failure", "LocalClusterError", "LocalResult", "run_local_cluster"]
