# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.moe.moe_config``, which scripts pass to ``tsm.transform``, where it is refused."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class MoEConfig:
    """Configuration of a mixture of experts."""

    smp_moe: bool = True
    random_seed: int = 12345
    moe_load_balancing: str = "sinkhorn"
    global_token_shuffle: bool = False
    moe_all_to_all_dispatcher: bool = True
    moe_aux_loss_coeff: float = 0.001
    moe_z_loss_coeff: float = 0.001
    use_cpu_initialization: bool = False
