# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``smdistributed.modelparallel.torch.optimizers``, whose optimizers need apex."""

from __future__ import annotations

from lightning_sagemaker.parallel.degrees import ParallelConfigError


class _NeedsApex:
    def __init__(self, *_: object, **__: object) -> None:
        raise ParallelConfigError(
            f"smp.optimizers.{type(self).__name__} was built, which needs apex and is not available here. HINT: use"
            " torch.optim.AdamW(fused=True), or Lamb of pytorch-optimizer."
        )


class FusedLAMB(_NeedsApex):
    """Refused."""


class FusedNovoGrad(_NeedsApex):
    """Refused."""


class FusedAdam(_NeedsApex):
    """Refused."""


FusedLamb = FusedLAMB
