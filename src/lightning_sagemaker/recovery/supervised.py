# SPDX-License-Identifier: Apache-2.0
"""Whether a supervisor started this process."""

from __future__ import annotations

import os
from collections.abc import Mapping

from lightning_sagemaker.recovery import wire


def is_supervised(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a supervisor started this process and it is to go on without ranks that die."""
    return environment.get(wire.MODE) == "in_job" and wire.ADDRESS in environment
