# SPDX-License-Identifier: Apache-2.0
"""The former location of a class that scripts import."""

from lightning_sagemaker.strategies.sharded import FabricSMPShardedStrategy

__all__ = ["FabricSMPShardedStrategy"]
