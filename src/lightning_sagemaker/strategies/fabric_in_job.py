# SPDX-License-Identifier: Apache-2.0
"""Fabric's data parallel training that continues in the job when a rank dies (``recovery="in_job"``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from typing_extensions import override

from lightning_sagemaker._lightning import FabricDDPStrategy, rank_zero_only, rank_zero_warn
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.recovery import gradients
from lightning_sagemaker.recovery.fabric_loop import InJobLoop
from lightning_sagemaker.recovery.refused import CannotRecover, restarting_instead
from lightning_sagemaker.strategies.job_aware import JobAware
from lightning_sagemaker.strategies.quorum import JoinsQuorum, broadcast_state

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


T = TypeVar("T")


class _Sync:
    """Whether a backward pass averages gradients."""

    is_on = True

    @contextmanager
    def no_backward_sync(self, module: nn.Module, enabled: bool) -> Iterator[None]:
        before, self.is_on = self.is_on, not enabled
        try:
            yield
        finally:
            self.is_on = before


class FabricInJobDDPStrategy(JoinsQuorum, JobAware, FabricDDPStrategy):
    """Data parallel training with Fabric that continues when a rank dies.

    It needs an :class:`~lightning_sagemaker.InterruptibleLoop`, and processes that were started by ``lightning-sagemaker
    supervise``. Gradients are averaged at the end of a backward pass, not during it.

    Args:
        job: The job; read from the process's environment if None.
        **kwargs: Arguments of ``lightning.fabric.strategies.DDPStrategy``; those of torch's DDP wrapper are ignored.

    Raises:
        RecoveryError: If no supervisor started this process.

    """

    loop_kind = InJobLoop

    def __init__(self, *args: object, job: SageMakerJob | None = None, **kwargs: object) -> None:
        super().__init__(*args, job=job, **kwargs)
        self.loop: InJobLoop | None = None
        self.modules: list[nn.Module] = []
        self._has_said = self._is_averaged = False

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Parameters whose gradients are averaged, each once."""
        found = (one for module in self.modules for one in module.parameters() if one.requires_grad)
        return list(dict.fromkeys(found))

    # Ranks and groups

    @override
    def _setup_distributed(self) -> None:
        self.join_quorum()
        self._backward_sync_control = self._sync = _Sync()  # type: ignore[assignment]

    @override
    def _set_world_ranks(self) -> None:
        rank_zero_only.rank = self.global_rank

    @override
    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]
        """Broadcast rank zero's weights, as DDP does; there is no wrapper."""
        self.modules.append(module)
        if self.rank is not None and not self.rank.joins:
            broadcast_state(module)
        return module

    # Steps

    @override
    def backward(self, tensor: Tensor, module: nn.Module | None, *args: object, **kwargs: object) -> None:
        """As in Fabric; then the gradients are averaged, as in DDP.

        Raises:
            CannotRecover: If the optimizer has already stepped with this batch.

        """
        self._is_averaged = False
        if self.rank is not None:
            self.rank.early.end()
        loop = self._in_loop
        with (
            self._restarting,
            nullcontext() if loop is None else loop.steps.backward(self.parameters, self._sync.is_on),
        ):
            super().backward(tensor, module, *args, **kwargs)
        if self._sync.is_on:
            self._average()

    @property
    def _restarting(self) -> AbstractContextManager[None]:
        """Context in which ``CannotRecover`` restarts all ranks, unless recovery in the job was requested."""
        return nullcontext() if self.rank is None else restarting_instead(self.rank.client, self.is_asked)

    @property
    def _in_loop(self) -> InJobLoop | None:
        return self.loop if self.loop is not None and self.loop.runs else None

    def _average(self) -> bool:
        """Average the gradients, unless already averaged; returns False in a pass that is discarded."""
        if self._in_loop is not None:
            return self._in_loop.average_gradients()
        if not self._has_said:
            self._has_said = True
            rank_zero_warn(
                "This loop is not an InterruptibleLoop: a rank that dies ends the job. HINT: iterate over loop.epochs()"
                " and loop.batches(loader) of an InterruptibleLoop to recover in the job."
            )
        if not self._is_averaged:
            gradients.average(self.parameters, self.shards)
            self._is_averaged = True
        return True

    @override
    def optimizer_step(self, optimizer: Optimizer, **kwargs: object) -> object:  # type: ignore[override]
        """Step if all ranks can commit the step.

        Raises:
            CannotRecover: If a closure is passed, which would compute gradients again.

        """
        if kwargs.get("closure") is not None:
            with self._restarting:
                raise CannotRecover(
                    "optimizer.step was given a closure, whose gradients would not be averaged as those of backward are"
                )
        if not self._average():
            return None
        if self._in_loop is not None:
            self._in_loop.steps.step()
        return super().optimizer_step(optimizer, **kwargs)

    @override
    def clip_gradients_norm(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Tensor:
        """As in Fabric; a norm of zero in a pass that is discarded."""
        if not self._average():
            return torch.zeros((), device=self.root_device)
        return super().clip_gradients_norm(module, optimizer, max_norm, norm_type, error_if_nonfinite)

    @override
    def clip_gradients_value(self, module: nn.Module, optimizer: Optimizer, clip_val: float) -> None:
        """As in Fabric."""
        if self._average():
            super().clip_gradients_value(module, optimizer, clip_val)

    # Collectives of the script

    def _by_all(self, operation: Callable[[], T], alone: Callable[[], T], name: str = "") -> T:
        loop = self._in_loop
        return operation() if loop is None else loop.collectives.of_script(operation, alone, name=name)

    @override
    def all_reduce(
        self, tensor: Tensor, group: object = None, reduce_op: dist.ReduceOp | str | None = "mean"
    ) -> Tensor:
        """As in Fabric, over the current ranks."""
        if not isinstance(tensor, torch.Tensor):
            return tensor
        plain = super().all_reduce
        found = self._by_all(lambda: plain(tensor.clone(), group, reduce_op), lambda: tensor, "all_reduce")
        if found.dtype == tensor.dtype and not tensor.requires_grad:
            tensor.copy_(found)  # Fabric's works in place
        return found

    @override
    def all_gather(self, tensor: Tensor, group: object = None, sync_grads: bool = False) -> Tensor:
        """As in Fabric, over the current ranks."""
        plain = super().all_gather
        return self._by_all(
            lambda: plain(tensor, group, sync_grads),
            lambda: tensor if self.world_size == 1 else torch.stack([tensor] * self.world_size),
            "all_gather",
        )

    @override
    def broadcast(self, obj: T, src: int = 0) -> T:
        """As in Fabric, from one of the current ranks."""
        plain = super().broadcast
        return self._by_all(lambda: plain(obj, src), lambda: obj, "broadcast")

    @override
    def barrier(self, *args: object, **kwargs: object) -> None:
        """As in Fabric, over the current ranks."""
        plain = super().barrier
        self._by_all(lambda: plain(*args, **kwargs), lambda: None)
