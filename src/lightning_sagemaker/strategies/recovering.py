# SPDX-License-Identifier: Apache-2.0
"""Base of the Trainer's strategies that keep training when a rank dies (``recovery="in_job"``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from lightning_sagemaker._compat.trainer import callbacks_of, ensure_callback
from lightning_sagemaker._lightning import rank_zero_only
from lightning_sagemaker.callbacks.auto_resume import AutoResume, resume_from_newest
from lightning_sagemaker.recovery.coordinator_client import RecoveryError
from lightning_sagemaker.recovery.fit import RecoveringFit
from lightning_sagemaker.recovery.job_rank import JobRank
from lightning_sagemaker.strategies.default_callbacks import add_spot_interruption
from lightning_sagemaker.strategies.quorum import JoinsQuorum

if TYPE_CHECKING:
    from lightning.pytorch.strategies import ParallelStrategy as Host
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup
    from torch.optim import Optimizer

    from lightning_sagemaker._types import LightningModule, StateDict, Trainer
    from lightning_sagemaker.recovery.replicas import Replicas
else:
    Host = object


class RecoversInJob(JoinsQuorum, Host):
    """Mixin before a strategy: training continues when a rank dies.

    The remaining ranks train on the full global batch, so a step has the same samples and the same mean gradient; a
    replacement that the supervisor starts receives the state from another rank's memory.
    """

    _fit: RecoveringFit | None = None

    @property
    def distributed_sampler_kwargs(self) -> StateDict:
        """Arguments of the ``DistributedSampler``: in a fit for the ranks at the start, else for the current ranks."""
        module = self.lightning_module
        if self.rank is not None and module is not None and module.trainer.state.fn != "fit":
            return {"num_replicas": len(self.rank.order), "rank": self.rank.order.index(self.rank.number)}
        return super().distributed_sampler_kwargs

    # Ranks and groups

    def join_job(self, replicas: Replicas | None = None) -> JobRank:
        """Join the quorum, and prepare for a fit. Collective, except in a replacement.

        Args:
            replicas: Replicas of the model, if each is sharded across several ranks.

        Returns:
            This process, which has joined at the first call.

        Raises:
            RecoveryError: If an earlier Trainer of the process has replicas of another size.

        """
        if self.rank is not None:  # a second stage of the same Trainer
            return self.rank
        rank = self.join_quorum(replicas)
        if (size := replicas and replicas.size) != (rank.replicas and rank.replicas.size):
            raise RecoveryError(
                f"A Trainer of this script has replicas of {size or 1} ranks, unlike an earlier one. HINT: give all"
                " Trainers the same hybrid_shard_degree, or set recovery='restart'."
            )
        if rank.restarts:
            rank.restarts = False  # the script's next Trainer does not resume
            if (module := self.lightning_module) is not None:
                resume_from_newest(module.trainer)
        self._fit = RecoveringFit(rank, self.form, self.shards, self.is_asked)
        return rank

    def set_world_ranks(self) -> None:
        """Set the ranks to those of the quorum; called by the strategy."""
        rank_zero_only.rank = self.global_rank

    # The Trainer

    def connect(self, model: LightningModule) -> None:
        """Called when the Trainer begins a stage."""
        super().connect(model)
        add_spot_interruption(model.trainer)  # no heartbeat, as the coordinator detects a frozen rank
        ensure_callback(model.trainer, AutoResume(search=False))

    def prepare(self, trainer: Trainer) -> bool:
        """Called before the strategy's own setup.

        Returns:
            Whether this rank is about to join others that train.

        """
        assert self.rank is not None
        assert self._fit is not None
        if self._fit not in callbacks_of(trainer) and trainer.state.fn == "fit":
            callbacks_of(trainer).insert(0, self._fit)
        if self.rank.joins:
            trainer.num_sanity_val_steps = 0
        return self.rank.joins

    def reduce(
        self, tensor: Tensor, group: ProcessGroup | None = None, reduce_op: dist.ReduceOp | str | None = "mean"
    ) -> Tensor:
        """As in DDP, but a mean of integers is not truncated: Lightning averages counts of samples, which differ by rank.

        Args:
            tensor: Tensor of this rank.
            group: Process group; None for all ranks.
            reduce_op: ``"mean"``, ``"sum"`` or an operation of torch.

        """
        is_mean = isinstance(reduce_op, str) and reduce_op.lower() in ("mean", "avg")
        if is_mean and isinstance(tensor, torch.Tensor) and not tensor.is_floating_point() and not tensor.is_complex():
            tensor = tensor.to(torch.float64 if tensor.device.type != "mps" else torch.float32)
        if self._fit is not None and isinstance(tensor, torch.Tensor):
            found = self._fit.reduce_logged(tensor, reduce_op)
            if found is not None:
                return found
        return super().reduce(tensor, group, reduce_op)  # type: ignore[safe-super]

    def on_train_batch_start(self, batch: object, batch_idx: int) -> None:
        """Start a batch; called by the loop."""
        assert self._fit is not None
        self._fit.begin_batch(batch, batch_idx)

    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *args: object, **kwargs: object) -> Tensor:
        """As in Lightning; the hooks after a step's last backward pass see averaged gradients, as with DDP.

        Raises:
            RanksChanged: If the step is not committed.

        """
        precision, module = self.precision_plugin, self.lightning_module
        assert module is not None
        assert self._fit is not None
        self.pre_backward(closure_loss)
        loss = precision.pre_backward(closure_loss, module)
        precision.backward(loss, module, optimizer, *args, **kwargs)
        if self._fit.reduce():
            loss = precision.post_backward(loss, module)
        self.post_backward(loss)
        return loss

    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], object], model: nn.Module | None = None, **kwargs: object
    ) -> object:
        """Step if all ranks can commit the step.

        Raises:
            RanksChanged: If the step is not committed.

        """
        fit = self._fit
        assert fit is not None
        return super().optimizer_step(optimizer, lambda: fit.compute(optimizer, closure), model, **kwargs)
