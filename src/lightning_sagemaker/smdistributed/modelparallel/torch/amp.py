# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.modelparallel.torch.amp``."""

from __future__ import annotations

from typing import Any

import torch

from lightning_sagemaker.parallel.gradients import agree_on_overflow
from lightning_sagemaker.smdistributed.modelparallel.torch.state_mod import state


class GradScaler(torch.amp.GradScaler):
    """torch's scaler, synchronized over all stages: all skip a step if one of them finds an infinite gradient."""

    def __init__(self, init_scale: float = 2.0**16, *args: Any, device: str | None = None, **kwargs: Any) -> None:
        super().__init__(device or state.device.type, init_scale, *args, **kwargs)

    def step(self, optimizer: torch.optim.Optimizer, *args: object, **kwargs: object) -> float | None:
        """Update the parameters, unless a gradient is infinite. Collective over the model replica."""
        self._set_up()
        return super().step(optimizer, *args, **kwargs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale. Collective over the model replica."""
        self._set_up()
        super().unscale_(optimizer)
        if self.is_enabled():
            agree_on_overflow(self, optimizer, state.device, state.groups.groups["MP"])

    def _set_up(self) -> None:
        """Make the scale a tensor, which torch does when a loss is scaled: that happens on the last stage only."""
        self.scale(torch.zeros((), device=state.device))
