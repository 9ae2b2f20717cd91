# SPDX-License-Identifier: Apache-2.0
"""Data parallel training that continues in the job when a rank dies (``recovery="in_job"``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from lightning_sagemaker._lightning import DDPStrategy, reset_seed
from lightning_sagemaker.strategies.ddp import JobDDPStrategy
from lightning_sagemaker.strategies.quorum import broadcast_state
from lightning_sagemaker.strategies.recovering import RecoversInJob

if TYPE_CHECKING:
    from torch import nn

    from lightning_sagemaker._types import Trainer


class InJobDDPStrategy(RecoversInJob, JobDDPStrategy):
    """Lightning's DDP, which keeps training when a rank dies.

    The processes must be started by ``lightning-sagemaker supervise``.

    Args:
        **kwargs: ``job`` of :class:`~lightning_sagemaker.strategies.quorum.JoinsQuorum`, and those of
            ``lightning.pytorch.strategies.DDPStrategy``; those of torch's DDP wrapper are ignored.

    Raises:
        RecoveryError: If no supervisor started this process.

    """

    @override
    def setup_distributed(self) -> None:
        reset_seed()
        self.join_job()

    @override
    def setup(self, trainer: Trainer) -> None:
        joins = self.prepare(trainer)
        super(DDPStrategy, self).setup(trainer)
        if not joins:
            broadcast_state(self.lightning_module)  # type: ignore[arg-type]

    @override
    def _setup_model(self, model: nn.Module) -> Any:
        return model
