# SPDX-License-Identifier: Apache-2.0
"""Which ``torch.distributed`` backend SMDDP training uses, and why; loads the library behind it."""

from __future__ import annotations

from importlib import import_module

import torch

from lightning_sagemaker._lightning import rank_zero_info
from lightning_sagemaker.collectives import composite
from lightning_sagemaker.job import SageMakerJob
from lightning_sagemaker.selection import Selection, select_smddp_backend
from lightning_sagemaker.smdistributed import importer
from lightning_sagemaker.strategies.host import Host


def choose_backend(job: SageMakerJob, device: torch.device) -> tuple[str, str]:
    """Backend for SMDDP training on ``device``, and the reason in a sentence.

    Args:
        job: The job as read.
        device: The device of this process.

    """
    return choose_for_device(select_smddp_backend(job), job, device)


def choose_for_device(selection: Selection, job: SageMakerJob, device: torch.device) -> tuple[str, str]:
    """As :func:`choose_backend`, for a given selection; always gloo on a CPU."""
    if device.type == "cpu" and (selection.backend == "nccl" or _is_aws_library(selection.backend, job)):
        return "gloo", f"{selection.backend} needs a GPU and this process trains on the CPU, so gloo is used."
    return selection.backend, selection.reason


class SMDDPBackend(Host):
    """Mixin before a ``DDPStrategy``: its process group is SMDDP's, unless ``process_group_backend`` says otherwise."""

    job: SageMakerJob
    root_device: torch.device
    _process_group_backend: str | None

    def _get_process_group_backend(self) -> str:
        if self._process_group_backend is not None:
            return load_backend(self._process_group_backend)
        backend, reason = choose_backend(self.job, self.root_device)
        rank_zero_info(f"{type(self).__name__}: backend {backend!r}. {reason}")
        return load_backend(backend)


def _is_aws_library(backend: str, job: SageMakerJob) -> bool:
    return backend == "smddp" and job.smddp_version is not None


def load_backend(backend: str) -> str:
    """Register ``backend`` with torch if it is SMDDP; the name to give to ``init_process_group``."""
    if backend != "smddp":
        return backend
    importer.install()  # does nothing if AWS's library is installed
    import_module("smdistributed.dataparallel.torch.torch_smddp")
    if not composite.composite_enabled():
        return backend
    composite.register()
    return composite.COMPOSITE_BACKEND
