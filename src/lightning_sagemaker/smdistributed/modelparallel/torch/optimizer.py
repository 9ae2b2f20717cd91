# SPDX-License-Identifier: Apache-2.0
"""``smp.DistributedOptimizer``: an optimizer whose state is partitioned as the model is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_sagemaker._compat.dtensor import local_of
from lightning_sagemaker._compat.param_groups import parameters_in
from lightning_sagemaker.parallel.optimizer_scope import check_scope
from lightning_sagemaker.smdistributed.modelparallel.torch.model import IS_PARTIAL
from lightning_sagemaker.smdistributed.modelparallel.torch.sharded import ShardedParameters
from lightning_sagemaker.smdistributed.modelparallel.torch.state_mod import state

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint, StateDict


_LOSS_SCALE_ARGS = {
    "init_scale",
    "scale_factor",
    "scale_window",
    "min_scale",
    "delayed_shift",
    "consecutive_hysteresis",
}


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps the optimizer of a script. Learning-rate schedulers accept it as one of torch's.

    Args:
        optimizer: Optimizer of the model's parameters, built before or after the model was wrapped.
        static_loss_scale: Without effect.
        dynamic_loss_scale: Without effect.
        dynamic_loss_args: Without effect.
        **given: Without effect: entries of ``dynamic_loss_args``.

    Raises:
        TypeError: If an option has another name.
        ParallelConfigError: If a step depends on all parameters, or on full matrices where a rank has shards of them.

    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        static_loss_scale: float | None = 1.0,
        dynamic_loss_scale: bool = False,
        dynamic_loss_args: Mapping[str, object] | None = None,
        **given: object,
    ) -> None:
        unknown = given.keys() - _LOSS_SCALE_ARGS
        if unknown:
            raise TypeError(
                f"smp.DistributedOptimizer({', '.join(f'{name}=...' for name in sorted(unknown))}) was called. HINT: AWS's"
                f" options are static_loss_scale, dynamic_loss_scale, and those of the latter: {sorted(_LOSS_SCALE_ARGS)}."
            )
        if state.initialized and len(state.groups.ranks["MP"]) > 1:
            check_scope(optimizer, state.groups.degrees.tensor > 1)
        if self._sharded is not None:
            self._sharded.adopt(optimizer)
        self._global_grad_norm: Tensor | None = None
        self.optimizer = optimizer  # not super().__init__: parameters and state are the wrapped one's
        self.overflow = False
        state.optimizer = self

    @property
    def _sharded(self) -> ShardedParameters | None:
        """The model's sharded parameters, if it has them: then it is wrapped before its optimizer."""
        found: ShardedParameters | None = getattr(state.model, "sharded", None)
        return found

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Parameter groups of the wrapped optimizer."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """State of the wrapped optimizer."""
        return self.optimizer.state

    @property
    def defaults(self) -> StateDict:  # type: ignore[override]
        """Defaults of the wrapped optimizer."""
        return self.optimizer.defaults

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optimizer!r})"

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update this process's parameters; of sharded ones, clip gradients to ``sdp_gradient_clipping`` first."""
        if self._sharded is not None:
            assert state.cfg is not None
            self._global_grad_norm = self._sharded.clip_norm(state.cfg.sdp_gradient_clipping)
        return self.optimizer.step() if closure is None else self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients."""
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group to the wrapped optimizer."""
        self.optimizer.add_param_group(param_group)

    def clip_master_grads(self, max_norm: float) -> Tensor:
        """Clip the global gradient norm; returns the norm before. Collective over the replica."""
        norm: Tensor = state.model.clip_norm(state.model.own, max_norm)
        return norm

    def state_dict(self) -> StateDict:
        """The full state. Collective over the replica."""
        if state.model is None:
            return self.optimizer.state_dict()
        return dict(state.model.gather_optimizer(self.optimizer))

    def local_state_dict(self, gather_if_shard: bool = True) -> StateDict:
        """The state of this process's parameters, marked as partial.

        Args:
            gather_if_shard: Without effect: states are not sharded among replicas.

        """
        if self._sharded is not None:
            return {**self._sharded.map_optimizer(self.optimizer, local_of), IS_PARTIAL: True}
        partial = state.model is not None and len(state.groups.ranks["MP"]) > 1
        return {**self.optimizer.state_dict(), IS_PARTIAL: partial}

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Load a full or a partial state, before or after the model is partitioned.

        Before it is partitioned, partial states are merged; then collective over the model replica.
        """
        content: Checkpoint = dict(state_dict)
        is_partial = bool(content.pop(IS_PARTIAL, False))
        if self._sharded is not None:
            self.optimizer.load_state_dict(self._sharded.optimizer_state(self.optimizer, content, is_partial))
            return
        is_cut = state.model is not None and state.model.partitioned
        if is_partial and not is_cut and len(state.groups.ranks["TP"]) > 1:  # matrices need to be sharded first
            state.model.register_post_partition_hook(lambda *_: self.load_state_dict({**content, IS_PARTIAL: True}))
            return
        if is_partial and not is_cut:
            parts: list[Checkpoint] = [{}] * len(state.groups.pipeline_ranks)
            dist.all_gather_object(parts, content["state"], group=state.groups.cpu_groups["PP"])
            content["state"] = {index: entry for part in reversed(parts) for index, entry in part.items()}
        if is_cut:
            parameters = parameters_in(self.param_groups)
            content["state"] = {
                index: {key: state.model.part_of(parameters[index], value) for key, value in entry.items()}
                for index, entry in content["state"].items()
                if parameters[index].numel()  # those of other stages are empty here
            }
        self.optimizer.load_state_dict(content)
