# SPDX-License-Identifier: Apache-2.0
"""``"smp"`` without pipeline stages, for the Trainer and Fabric: tensor parallelism and sharded parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from typing_extensions import override

from lightning_sagemaker._compat.guard import shadow
from lightning_sagemaker._compat.optimizer_states import exact_optimizer_states
from lightning_sagemaker._compat.sharding import FSDPModule
from lightning_sagemaker._lightning import (
    FabricModelParallelStrategy,
    MisconfigurationException,
    ModelParallelStrategy,
)
from lightning_sagemaker.collectives.agreement import from_first, run_and_sync_errors
from lightning_sagemaker.parallel.manual_steps import gather_where_used
from lightning_sagemaker.parallel.sharding import TP, clip_norm
from lightning_sagemaker.strategies.async_checkpointing import AsyncCheckpointing
from lightning_sagemaker.strategies.job_aware import JobAware
from lightning_sagemaker.strategies.sharded_checkpoints import ShardedCheckpoints, local_target
from lightning_sagemaker.strategies.sharded_layout import ShardedLayout
from lightning_sagemaker.strategies.smp_parameters import refuse_partitions
from lightning_sagemaker.strategies.stock_callbacks import check_trainer
from lightning_sagemaker.strategies.trainer_defaults import JobDefaults

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.optim import Optimizer

    from lightning_sagemaker._types import Checkpoint, PathLike, StateDict, Trainer


_STEPS = ("training_step", "validation_step", "test_step", "predict_step")


class _ChecksummedStrategy(ShardedCheckpoints, ModelParallelStrategy):
    """Lightning's strategy, with checksums in sharded checkpoints, which may be in S3."""

    @property
    def num_nodes(self) -> int:
        """Number of hosts, as in Lightning's other strategies: from the job, which a plain attribute cannot be."""
        return self._num_nodes

    @num_nodes.setter
    def num_nodes(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes

    @override
    def save_checkpoint(self, checkpoint: Checkpoint, filepath: PathLike, storage_options: object = None) -> None:
        """Write a checkpoint; called on all processes.

        Raises:
            RuntimeError: On all processes, if one cannot write or upload its shard.

        """
        if self._save_distributed_checkpoint:
            self._checkpointer.save(checkpoint, filepath, super().save_checkpoint)
        else:
            super().save_checkpoint(checkpoint, filepath, storage_options)

    @override
    def load_checkpoint(self, checkpoint_path: PathLike, weights_only: bool | None = None) -> StateDict:
        """Read a checkpoint; called on all processes."""
        load = super().load_checkpoint
        if self._save_distributed_checkpoint:
            return self._checkpointer.load(checkpoint_path, lambda path: load(path, weights_only))
        return load(checkpoint_path, weights_only)


class SMPShardedStrategy(AsyncCheckpointing, ShardedLayout, JobAware, JobDefaults, _ChecksummedStrategy):
    """SageMaker's tensor parallelism and sharded data parallelism, with DTensor and FSDP2.

    The LightningModule stays unchanged: after ``configure_model`` its linear layers are sharded across
    ``tensor_parallel_degree`` processes, and the parameters of each block are sharded with FSDP2.

    Args:
        **kwargs: ``async_checkpoint`` and ``save_distributed_checkpoint`` of
            :class:`~lightning_sagemaker.strategies.async_checkpointing.AsyncCheckpointing`, ``parameters``, ``degrees``,
            ``job`` and ``activation_checkpointing`` of
            :class:`~lightning_sagemaker.strategies.smp_parameters.ParallelLayout`, and those of
            ``lightning.pytorch.strategies.ModelParallelStrategy``.

    Raises:
        ParallelConfigError: If the parameters contradict each other or the number of processes, there are none,
            or they request partitions.

    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        refuse_partitions(
            self.degrees, "SMPShardedStrategy", "it has no pipeline stages", "SMPStrategy or Trainer(strategy='smp')"
        )
        self._tensor_parallel_size = self.degrees.tensor
        self._tensor_group: ProcessGroup | None = None

    @override
    def _setup_distributed(self) -> None:
        self.set_world_ranks()
        super()._setup_distributed()
        self.log_ignored_parameters()

    @override
    def setup_environment(self) -> None:
        module = self.lightning_module
        assert module is not None
        check_trainer(module.trainer, partitions=False)  # before any process group is created
        super().setup_environment()
        build, mesh = module.configure_model, self.mesh()

        def configure_model() -> None:
            build()
            if getattr(module, "_is_sharded", False):
                return
            has_units = any(isinstance(part, FSDPModule) for part in module.modules())
            self.shard(module, mesh, _STEPS)
            vars(module)["_is_sharded"] = True
            if not has_units and not module.automatic_optimization:
                gather_where_used(module)

        shadow(module, "configure_model", configure_model)
        if self.degrees.tensor > 1:
            self._tensor_group = mesh[TP].get_group()
            self.sync_seed(self._tensor_group)

    @override
    def batch_to_device(self, batch: object, device: torch.device | None = None, dataloader_idx: int = 0) -> object:
        """Move a batch to the device; the first process of a tensor parallel group broadcasts its batch."""
        if self._tensor_group is not None:
            box = [batch]
            dist.broadcast_object_list(box, dist.get_global_rank(self._tensor_group, 0), self._tensor_group)
            batch = box[0]
        return super().batch_to_device(batch, device, dataloader_idx)

    @override
    def setup(self, trainer: Trainer) -> None:
        super().setup(trainer)
        for loop in (trainer.validate_loop, trainer.test_loop, trainer.predict_loop):
            loop.inference_mode = False  # what is gathered in inference mode cannot be trained with afterwards
        shadow(self.precision_plugin, "clip_grad_by_norm", self._clip_norm)  # of all processes
        module = self.lightning_module
        if isinstance(module, FSDPModule) and not module.automatic_optimization:
            for optimizer in self.optimizers:  # the same step may use the updated parameters
                optimizer.register_step_post_hook(lambda *_: module.reshard())

    def _clip_norm(self, optimizer: Optimizer, clip_val: float) -> None:
        if clip_val > 0:
            clip_norm(self.precision_plugin.main_params(optimizer), clip_val)


class FabricSMPShardedStrategy(ShardedLayout, JobAware, FabricModelParallelStrategy):
    """The counterpart of :class:`~lightning_sagemaker.SMPShardedStrategy` for ``Fabric(strategy="smp")``.

    Processes of a tensor parallel group must receive the same batches, which ``fabric.setup_dataloaders`` ensures.

    Args:
        parallelize_fn: Function of the module and ``device_mesh`` that parallelizes or shards it and returns it; if it
            does either, nothing else is parallelized or sharded.
        save_distributed_checkpoint: Whether each process writes its shard into a folder, else rank zero writes one file.
        **kwargs: ``parameters``, ``degrees``, ``job`` and ``activation_checkpointing`` of
            :class:`~lightning_sagemaker.strategies.smp_parameters.ParallelLayout`, and those of
            ``lightning.fabric.strategies.ModelParallelStrategy``.

    Raises:
        ParallelConfigError: If the parameters contradict each other or the number of processes, there are none,
            or they request partitions.

    """

    def __init__(
        self,
        parallelize_fn: Callable[[nn.Module, DeviceMesh], nn.Module] | None = None,
        *,
        save_distributed_checkpoint: bool = False,
        **kwargs: Any,
    ) -> None:
        self._first_parallelize = parallelize_fn
        super().__init__(
            parallelize_fn=self._shard_module, save_distributed_checkpoint=save_distributed_checkpoint, **kwargs
        )
        refuse_partitions(
            self.degrees,
            "Fabric(strategy='smp')",
            "a pipeline interleaves forward and backward passes, which a loop of model(...) and fabric.backward(...) cannot",
            "Trainer(strategy='smp')",
        )
        self._tensor_parallel_size = self.degrees.tensor

    @override
    def _setup_distributed(self) -> None:
        self._set_world_ranks()
        super()._setup_distributed()
        self.log_ignored_parameters()

    def _shard_module(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if self._first_parallelize is not None:
            module = self._first_parallelize(module, device_mesh)
        mesh = self.mesh()
        if self.degrees.tensor > 1:
            self.sync_seed(mesh[TP].get_group())
        self.shard(module, mesh)
        return module

    @override
    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: list[Optimizer], scheduler: object = None
    ) -> tuple[nn.Module, list[Optimizer], Any]:
        """Shard the module, and replace its parameters in optimizers that were created before."""
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        module = self.setup_module(module)
        parameters = dict(module.named_parameters())
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["params"] = [parameters[names[id(parameter)]] for parameter in group["params"]]
        return module, [self.setup_optimizer(optimizer) for optimizer in optimizers], scheduler

    @override
    def save_checkpoint(self, path: PathLike, state: StateDict, *arguments: object, **options: object) -> None:
        """Write a checkpoint; called on all processes. One file is written under a temporary name first.

        Raises:
            RuntimeError: On all processes, if one cannot write.

        """
        write: Callable[..., None] = super().save_checkpoint
        target = local_target(from_first(path))
        is_file = not (self._save_distributed_checkpoint or target.is_dir())
        unfinished = target.with_name(f".{target.name}.unfinished") if is_file else target

        def make_folder() -> None:
            if self.global_rank == 0:
                target.parent.mkdir(parents=True, exist_ok=True)

        def save() -> None:
            try:
                with exact_optimizer_states():
                    write(unfinished, state, *arguments, **options)
                if is_file and self.global_rank == 0:
                    unfinished.replace(target)
            finally:
                if is_file and self.global_rank == 0:
                    unfinished.unlink(missing_ok=True)

        run_and_sync_errors(make_folder)  # before any rank waits for the others' parts
        try:
            run_and_sync_errors(save)
        except RuntimeError as error:
            if isinstance(error.__cause__, (TypeError, ValueError, NotImplementedError)):
                raise error.__cause__ from None  # an error of the arguments, so on all ranks, as Lightning raises it
            raise

    @override
    def load_checkpoint(self, *arguments: object, **options: object) -> Checkpoint:
        """Read a checkpoint; called on all processes."""
        load: Callable[..., Checkpoint] = super().load_checkpoint
        with exact_optimizer_states():
            return load(*arguments, **options)

    @override
    def clip_gradients_norm(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Tensor:
        """Clip by the norm over all processes.

        Raises:
            MisconfigurationException: If ``norm_type`` is not 2.

        """
        if norm_type != 2.0:
            raise MisconfigurationException(f"norm_type={norm_type} was set. HINT: with strategy='smp' it must be 2.")
        self.precision.unscale_gradients(optimizer)
        norm = clip_norm(self.precision.main_params(optimizer), max_norm)
        if error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(
                f"The norm of the gradients is {norm.item()}. HINT: pass error_if_nonfinite=False to continue."
            )
        return norm
