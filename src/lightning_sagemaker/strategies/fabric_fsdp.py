# SPDX-License-Identifier: Apache-2.0
"""``"smddp_fsdp"`` for Fabric."""

from __future__ import annotations

from typing_extensions import override

from lightning_sagemaker.parallel.sharding import ShardOptions
from lightning_sagemaker.strategies.fabric_smp import FabricSMPShardedStrategy
from lightning_sagemaker.strategies.fsdp_options import TakesShardOptions
from lightning_sagemaker.strategies.gathers import GathersBySMDDP


class FabricSMDDPFSDPStrategy(GathersBySMDDP, TakesShardOptions, FabricSMPShardedStrategy):
    """The twin of :class:`~lightning_sagemaker.SMDDPFSDPStrategy` for ``Fabric(strategy="smddp_fsdp")``.

    Args:
        save_distributed_checkpoint: Each process writes its part, into a folder; else the first writes one file.
        **kwargs: Those of :class:`~lightning_sagemaker.SMDDPFSDPStrategy`.

    Raises:
        ParallelConfigError: If the parameters contradict each other or the number of processes.
        MisconfigurationException: With a precision that FSDP2 does not have.

    """

    @override
    def _setup_distributed(self) -> None:
        self.sharding_options()  # refuses before there is any process group
        super()._setup_distributed()

    @override
    def sharding_options(self) -> ShardOptions:
        return self.options_for(self.precision)
