# SPDX-License-Identifier: Apache-2.0
"""``"smp"`` without pipeline stages: shared matrices and sharded parameters of an unchanged LightningModule."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from typing_extensions import override

from lightning_sagemaker._lightning import ModelParallelStrategy
from lightning_sagemaker.parallel.sharding import TENSOR, clip_norm
from lightning_sagemaker.strategies.beside import WritesBeside
from lightning_sagemaker.strategies.checked_parts import CheckedParts
from lightning_sagemaker.strategies.job_aware import JobAware
from lightning_sagemaker.strategies.shards import Shards
from lightning_sagemaker.strategies.smp_parameters import FollowsDegrees
from lightning_sagemaker.strategies.stock_callbacks import check_trainer
from lightning_sagemaker.strategies.trainer_defaults import InJob

_STEPS = ("training_step", "validation_step", "test_step", "predict_step")


class SMPShardedStrategy(WritesBeside, CheckedParts, Shards, FollowsDegrees, JobAware, InJob, ModelParallelStrategy):
    """SageMaker's tensor parallelism and sharded data parallelism, by DTensor and FSDP2.

    The LightningModule stays as it is: after ``configure_model`` its linear layers are shared among
    ``tensor_parallel_degree`` processes, and the parameters of each block are sharded.

    Args:
        **kwargs: ``async_checkpoint`` and ``save_distributed_checkpoint`` of
            :class:`~lightning_sagemaker.strategies.beside.WritesBeside`, ``parameters``, ``degrees``, ``job`` and
            ``activation_checkpointing`` of :class:`~lightning_sagemaker.strategies.smp_parameters.FollowsDegrees`, and those
            of ``lightning.pytorch.strategies.ModelParallelStrategy``.

    Raises:
        ParallelConfigError: If the parameters contradict each other or the number of processes, or there are none.

    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tensor_parallel_size = self.degrees.tensor
        self._tensor_group: Any = None

    @override
    def _setup_distributed(self) -> None:
        self.set_world_ranks()
        copies = self.degrees.replicas(self.world_size)  # refuses before there is any process group
        self._data_parallel_size = copies
        super()._setup_distributed()
        self.say_notes()

    @override
    def setup_environment(self) -> None:
        module = self.lightning_module
        assert module is not None
        check_trainer(module.trainer, partitions=False)  # before there is any process group
        super().setup_environment()
        build, mesh = module.configure_model, self.mesh()

        def configure_model() -> None:
            build()
            if getattr(module, "_is_sharded", False):
                return
            self.shard(module, mesh, _STEPS)
            vars(module)["_is_sharded"] = True

        vars(module)["configure_model"] = configure_model
        if self.degrees.tensor > 1:
            self._tensor_group = mesh[TENSOR].get_group()
            self.agree_on_seed(self._tensor_group)

    @override
    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """The batch of the first of the processes that share matrices, on all of them."""
        if self._tensor_group is not None:
            box = [batch]
            dist.broadcast_object_list(box, dist.get_global_rank(self._tensor_group, 0), self._tensor_group)
            batch = box[0]
        return super().batch_to_device(batch, device, dataloader_idx)

    @override
    def setup(self, trainer: Any) -> None:
        super().setup(trainer)
        for loop in (trainer.validate_loop, trainer.test_loop, trainer.predict_loop):
            loop.inference_mode = False  # what is gathered in inference mode cannot be trained with afterwards
        vars(self.precision_plugin)["clip_grad_by_norm"] = self._clip_norm  # of all processes

    def _clip_norm(self, optimizer: Any, clip_val: float) -> None:
        if clip_val > 0:
            clip_norm(self.precision_plugin.main_params(optimizer), clip_val)
