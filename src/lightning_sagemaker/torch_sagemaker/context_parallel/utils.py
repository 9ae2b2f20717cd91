# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.context_parallel.utils``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_sagemaker.parallel.degrees import ParallelConfigError

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup


def setup_transformer_engine_cp_groups(model: nn.Module, ranks: object, group: ProcessGroup | None) -> None:
    """Refused.

    Raises:
        ParallelConfigError: Always.

    """
    raise ParallelConfigError(
        "setup_transformer_engine_cp_groups was called, but there is no context parallelism here. HINT: remove"
        " context_parallel_degree."
    )
