# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.context_parallel.utils``."""

from __future__ import annotations

from typing import Any

from lightning_sagemaker.parallel.degrees import ParallelConfigError


def setup_transformer_engine_cp_groups(model: Any, ranks: Any, group: Any) -> None:
    """Refused.

    Raises:
        ParallelConfigError: Always.

    """
    raise ParallelConfigError(
        "setup_transformer_engine_cp_groups was called, but there is no context parallelism here. HINT: remove"
        " context_parallel_degree."
    )
