# SPDX-License-Identifier: Apache-2.0
"""Hooks that a script registers with the model."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, cast

from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.smdistributed.modelparallel.torch.state_mod import state as of_smp
from lightning_sagemaker.smdistributed.modelparallel.torch.uneven import UnevenBatches

if TYPE_CHECKING:
    from lightning_sagemaker.parallel.model import PipelinedModel
    from lightning_sagemaker.smdistributed.modelparallel.torch.model import DistributedModel


_KEYS = itertools.count()


class Handle:
    """Handle of a registered hook, to remove it.

    Args:
        hooks: Registry that keeps the hook until it is called or removed.
        hook: Hook to register.

    """

    def __init__(self, hooks: dict[int, Callable[..., object]], hook: Callable[..., object]) -> None:
        self._hooks = hooks
        self._key = next(_KEYS)  # not id(self): scripts seldom keep the handle, and the next one may get its id
        hooks[self._key] = hook

    def remove(self) -> None:
        """Remove the hook."""
        self._hooks.pop(self._key, None)


class Hooks:
    """Mixin of ``DistributedModel``: AWS's hooks, and ``join``."""

    _pipeline: PipelinedModel | None
    _after_partition: dict[int, Callable[..., object]]
    _after_step: dict[int, Callable[..., object]]

    def register_post_partition_hook(self, hook: Callable[..., object]) -> Handle:
        """Call ``hook(model, optimizer)`` once, in the first step: after the model is partitioned, before its forward pass.

        Raises:
            RuntimeError: If the model is partitioned already.

        """
        if self._pipeline is not None:
            raise RuntimeError("The model is already partitioned. HINT: register the hook before the first step.")
        return Handle(self._after_partition, hook)

    def call_after_partition(self, optimizer: object) -> None:
        """Call the hooks of :meth:`register_post_partition_hook`."""
        hooks, self._after_partition = self._after_partition, {}
        for hook in hooks.values():
            hook(self, optimizer)

    def register_post_step_hook(self, hook: Callable[..., object]) -> Handle:
        """Call ``hook(model, optimizer)`` once, after the next step."""
        return Handle(self._after_step, hook)

    def register_comm_hook(self, state: object, hook: object) -> None:
        """Refused.

        Raises:
            ParallelConfigError: Always.

        """
        raise ParallelConfigError(
            "model.register_comm_hook was called, which this stand-in for AWS's library does not support. HINT: remove it."
        )

    def join(
        self, divide_by_initial_world_size: bool = True, enable: bool = True, throw_on_early_termination: bool = False
    ) -> AbstractContextManager[object]:
        """Let replicas make different numbers of steps: those that have finished take part in the others' reductions.

        Args:
            divide_by_initial_world_size: Divide the sum of gradients by the number of all replicas, not of those left.
            enable: Whether the context has an effect.
            throw_on_early_termination: Raise on all replicas as soon as one has finished, instead of continuing.

        Raises:
            ParallelConfigError: If parameters are sharded: each step gathers them from all replicas.

        """
        if not enable or len(of_smp.groups.ranks["RDP"]) == 1:
            return nullcontext()
        if of_smp.groups.degrees.shard > 1:
            raise ParallelConfigError(
                "model.join() was called with sharded_data_parallel_degree, where each step gathers parameters from all"
                " replicas. HINT: give all of them as many batches, with drop_last=True in the sampler and the loader."
            )
        model = cast("DistributedModel", self)
        return UnevenBatches(model, divide_by_initial_world_size, throw_on_early_termination)
