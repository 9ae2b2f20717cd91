# SPDX-License-Identifier: Apache-2.0
"""Process groups of sharded data parallel training: parameters are gathered by SMDDP, everything else goes to gloo and nccl.

SMDDP's AllGather handles tensors that fit its buffers and leaves the rest to nccl. Here that is decided before the call, and
:data:`TRAFFIC` counts the bytes that each engine gathered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from lightning_sagemaker._compat import monitored_barrier
from lightning_sagemaker.collectives.composite import create_engine
from lightning_sagemaker.collectives.native import NativeBackedGroup, untraced

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from lightning_sagemaker._types import BackendOptions


GATHERING_BACKEND = "smddp_gathering"
"""Name under which :func:`register` makes these groups known to ``torch.distributed.init_process_group``."""


Obstacle = Callable[[int, int, bool], str | None]
"""Bytes per process, processes, is floating-point -> why SMDDP does not gather them; None if it does."""


@dataclass
class Traffic:
    """What this process has gathered since its default group was created.

    Attributes:
        engine: Number of gathers by SMDDP.
        engine_bytes: Bytes of their outputs.
        rest_bytes: Bytes of the outputs of all others, by reason.

    """

    engine: int = 0
    engine_bytes: int = 0
    rest_bytes: Counter[str] = field(default_factory=Counter)

    def clear(self) -> None:
        """Reset the counters."""
        self.engine = self.engine_bytes = 0
        self.rest_bytes.clear()

    def __str__(self) -> str:
        total = self.engine_bytes + self.rest_bytes.total()
        if not total:
            return "Nothing was gathered."
        text = f"SMDDP gathers {self.engine_bytes / total:.1%} of {total / 2**20:.1f} MiB"
        rest = " ".join(f"{count / total:.1%}: {why}" for why, count in self.rest_bytes.most_common(_REASONS))
        return f"{text}, and gloo or nccl the rest. {rest}" if rest else f"{text}."


TRAFFIC = Traffic()
_REASONS = 3
"""Number of reasons in a log line, the most frequent first."""


class GatheringProcessGroup(NativeBackedGroup):
    """A process group whose ``all_gather_into_tensor`` uses SMDDP where it supports the tensor; all else uses gloo or nccl.

    SMDDP's engine is created at the first gather, which many groups of a device mesh never run.

    Args:
        store: Rendezvous store, already prefixed for this group.
        rank: Rank of this process in the group.
        size: Number of processes in the group.
        timeout: Time limit of a collective.
        make_engine: Creates SMDDP's own group. Collective over this one.
        obstacle: Why SMDDP does not gather given tensors.

    """

    backend_name = GATHERING_BACKEND

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: timedelta,
        make_engine: Callable[[], ProcessGroup],
        obstacle: Obstacle,
    ) -> None:
        super().__init__(store, rank, size, timeout)
        self._make_engine, self._obstacle = make_engine, cache(obstacle)
        self._engine: ProcessGroup | None = None
        self._device_type = "cuda" if torch.cuda.is_available() and dist.is_nccl_available() else "cpu"

    @untraced
    def all_gather_single(self, output: Tensor, tensor: Tensor, *args: object) -> dist.Work:
        """Gather ``tensor`` of all processes in ``output``, of world size times its elements.

        Args:
            output: Result, in rank order.
            tensor: This process's part.
            *args: Options, as torch passes them.

        """
        return self._gather("all_gather_single", output, tensor, *args)

    @untraced
    def _allgather_base(self, output: Tensor, tensor: Tensor, *args: object) -> dist.Work:
        """The same, under its name before torch 2.13."""
        return self._gather("_allgather_base", output, tensor, *args)

    def _gather(self, name: str, output: Tensor, tensor: Tensor, *args: object) -> dist.Work:
        nbytes = output.numel() * output.element_size()
        obstacle = self._obstacle_to(tensor)
        if obstacle is not None:
            TRAFFIC.rest_bytes[obstacle] += nbytes
            return getattr(self.native, name)(output, tensor, *args)  # type: ignore[no-any-return]
        if self._engine is None:
            self._engine = self._make_engine()
        TRAFFIC.engine += 1
        TRAFFIC.engine_bytes += nbytes
        return getattr(self._engine, name)(output, tensor, *args)  # type: ignore[no-any-return]

    def _obstacle_to(self, tensor: torch.Tensor) -> str | None:
        """Why SMDDP does not gather a tensor; the same on all processes of the group."""
        if self.size() == 1:
            return "This group has one process."
        if tensor.device.type != self._device_type:
            return f"SMDDP works on the {self._device_type}, and not on the {tensor.device.type}."
        return self._obstacle(tensor.numel() * tensor.element_size(), self.size(), tensor.is_floating_point())


def register(obstacle: Obstacle) -> None:
    """Make :data:`GATHERING_BACKEND` known to ``torch.distributed``.

    The backend ``smddp`` must be registered first (by importing ``torch_smddp``, AWS's or the shim's).

    Args:
        obstacle: Why SMDDP does not gather given tensors. Only the first call's is used.

    """
    monitored_barrier.take_over(GatheringProcessGroup)
    if GATHERING_BACKEND.upper() not in dist.Backend._plugins:

        def create(options: BackendOptions, _: object) -> GatheringProcessGroup:
            return _create(options, obstacle)

        dist.Backend.register_backend(GATHERING_BACKEND, create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: BackendOptions, obstacle: Obstacle) -> GatheringProcessGroup:
    store, rank, size, timeout = options.store, options.group_rank, options.group_size, options.timeout
    if not options.global_ranks_in_group:  # torch names the members of every group but the default one
        TRAFFIC.clear()

    def make_engine() -> ProcessGroup:
        engine = create_engine(dist.PrefixStore("smddp", store), rank, size, timeout)
        if hasattr(engine, "gathers"):  # the shim's, which refuses gathers elsewhere
            engine.gathers = True
        return engine

    return GatheringProcessGroup(store, rank, size, timeout, make_engine, obstacle)
