# SPDX-License-Identifier: Apache-2.0
"""Files, variables and arguments that SageMaker's two generations of containers give a training script."""

from __future__ import annotations

from lightning_sagemaker.simulator.containers import modeltrainer, toolkit
from lightning_sagemaker.simulator.contract import Container

CONTRACTS: dict[str, Container] = {"toolkit": toolkit, "modeltrainer": modeltrainer}
"""Name of a generation, as ``--contract`` takes it -> its module."""
