# SPDX-License-Identifier: Apache-2.0
"""``"smp"`` for Fabric: shared matrices and sharded parameters."""

from __future__ import annotations

from typing import Any

from torch import nn
from typing_extensions import override

from lightning_sagemaker._lightning import FabricModelParallelStrategy, MisconfigurationException
from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.parallel.sharding import TENSOR, clip_norm
from lightning_sagemaker.strategies.job_aware import JobAware
from lightning_sagemaker.strategies.shards import Shards
from lightning_sagemaker.strategies.smp_parameters import FollowsDegrees


class FabricSMPShardedStrategy(Shards, FollowsDegrees, JobAware, FabricModelParallelStrategy):
    """The twin of :class:`~lightning_sagemaker.SMPShardedStrategy` for ``Fabric(strategy="smp")``.

    Processes that share matrices must be given the same batches, which ``fabric.setup_dataloaders`` sees to.

    Args:
        save_distributed_checkpoint: Each process writes its part, into a folder; else the first writes one file.
        **kwargs: ``parameters``, ``degrees``, ``job`` and ``activation_checkpointing`` of
            :class:`~lightning_sagemaker.strategies.smp_parameters.FollowsDegrees`, and those of
            ``lightning.fabric.strategies.ModelParallelStrategy`` but ``parallelize_fn``.

    Raises:
        ParallelConfigError: If the parameters contradict each other or the number of processes, or there are none.

    """

    def __init__(self, *args: Any, save_distributed_checkpoint: bool = False, **kwargs: Any) -> None:
        super().__init__(self._shard_whole, *args, save_distributed_checkpoint=save_distributed_checkpoint, **kwargs)
        self._tensor_parallel_size = self.degrees.tensor

    @override
    def _setup_distributed(self) -> None:
        self._set_world_ranks()
        self._data_parallel_size = self.degrees.replicas(self.world_size)  # refuses before there is any process group
        super()._setup_distributed()
        self.say_notes()

    def _shard_whole(self, module: nn.Module, _: Any) -> nn.Module:
        mesh = self.mesh()
        if self.degrees.tensor > 1:
            self.agree_on_seed(mesh[TENSOR].get_group())
        self.shard(module, mesh)
        return module

    @override
    def setup_module_and_optimizers(self, module: Any, optimizers: list[Any], scheduler: Any = None) -> Any:
        """Sharding replaces parameters, so optimizers that were made before are given the new ones."""
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        module = self.setup_module(module)
        parameters = dict(module.named_parameters())
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["params"] = [parameters[names[id(parameter)]] for parameter in group["params"]]
        return module, [self.setup_optimizer(optimizer) for optimizer in optimizers], scheduler

    @override
    def clip_gradients_norm(
        self, module: Any, optimizer: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = True
    ) -> Any:
        """Clip by the norm over all processes.

        Raises:
            MisconfigurationException: With another ``norm_type`` than 2.

        """
        if norm_type != 2.0:
            raise MisconfigurationException(f"norm_type={norm_type} was set. HINT: with strategy='smp' it must be 2.")
        self.precision.unscale_gradients(optimizer)
        norm = clip_norm(self.precision.main_params(optimizer), max_norm)
        if error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(
                f"The norm of the gradients is {norm.item()}. HINT: pass error_if_nonfinite=False to go on."
            )
        return norm


def fabric_smp_strategy(**kwargs: Any) -> FabricSMPShardedStrategy:
    """What ``Fabric(strategy="smp")`` stands for: shared matrices and sharded parameters.

    Args:
        **kwargs: Those of :class:`FabricSMPShardedStrategy`.

    Raises:
        ParallelConfigError: If the parameters ask for partitions: a loop that calls the model and then
            ``fabric.backward`` leaves no room for a pipeline, which runs backward passes between forward passes.

    """
    strategy = FabricSMPShardedStrategy(**kwargs)
    if strategy.degrees.pipeline > 1:
        raise ParallelConfigError(
            f"Fabric(strategy='smp') was asked for partitions={strategy.degrees.pipeline}, but a pipeline runs backward"
            " passes between forward passes, which a loop of model(...) and fabric.backward(...) cannot. HINT: use"
            " Trainer(strategy='smp'), or tensor_parallel_degree and a shard degree instead of partitions."
        )
    return strategy
