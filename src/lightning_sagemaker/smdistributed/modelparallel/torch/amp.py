# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.modelparallel.torch.amp``."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from lightning_sagemaker.smdistributed.modelparallel.torch.state_mod import state


class GradScaler(torch.amp.GradScaler):
    """torch's, for all stages together: a step is skipped by all if one of them finds an infinite gradient."""

    def __init__(self, init_scale: float = 2.0**16, *args: Any, device: str | None = None, **kwargs: Any) -> None:
        super().__init__(device or state.device.type, init_scale, *args, **kwargs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale. Collective over the copy of the model."""
        super().unscale_(optimizer)
        if not self.is_enabled():
            return
        found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        device = state.device
        flag = (
            torch.stack([value.to(device) for value in found.values()]).max()
            if found
            else torch.zeros((), device=device)
        )
        dist.all_reduce(flag, dist.ReduceOp.MAX, state.groups.groups["MP"])
        self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = {device: flag}
