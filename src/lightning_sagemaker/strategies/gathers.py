# SPDX-License-Identifier: Apache-2.0
"""Chooses the ``torch.distributed`` backend of sharded data parallel training; logs once what it gathered."""

from __future__ import annotations

from typing import Any

import torch

from lightning_sagemaker._lightning import rank_zero_info
from lightning_sagemaker.collectives import gathering
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.selection import gather_engines, select_gathering
from lightning_sagemaker.strategies.backend import choose_for_device, load_backend
from lightning_sagemaker.strategies.host import Host


class GathersBySMDDP(Host):
    """Mixin before a ``ModelParallelStrategy``, whose parameters are gathered by SMDDP.

    ``process_group_backend`` overrides the choice; ``"smddp"`` means SMDDP for every tensor that it supports.
    """

    job: SageMakerJob
    root_device: torch.device
    _process_group_backend: str | None
    _has_said = False

    def _get_process_group_backend(self) -> str:
        backend = self._process_group_backend
        if backend is None:
            backend, reason = choose_for_device(select_gathering(self.job), self.job, self.root_device)
            rank_zero_info(f"{type(self).__name__}: backend {backend!r}. {reason}")
        if backend != "smddp":
            return backend
        load_backend(backend)
        gathering.register(gather_engines(self.job).gather_obstacle)
        return gathering.GATHERING_BACKEND

    def optimizer_step(self, *args: Any, **kwargs: Any) -> object:
        """Called for each step; after the first, rank zero logs how much each engine gathered."""
        result = super().optimizer_step(*args, **kwargs)
        if not self._has_said:
            self._has_said = True
            if self._process_group_backend == gathering.GATHERING_BACKEND:
                rank_zero_info(f"{type(self).__name__}: {gathering.TRAFFIC}")
        return result
