# SPDX-License-Identifier: Apache-2.0
"""Recovery by restarts, for ranks that each hold a part of the model: when one is lost, all are restarted.

The coordinator supervises them like ranks that recover in the job, so it detects a frozen rank too, and a
restart is one of processes only. They do not vote: rank zero reports its steps.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING

import torch.distributed as dist

from lightning_sagemaker._lightning import Callback, rank_zero_info
from lightning_sagemaker.callbacks.auto_resume import resume_from_newest
from lightning_sagemaker.recovery import wire
from lightning_sagemaker.recovery.coordinator_client import CoordinatorClient, RecoveryError

if TYPE_CHECKING:
    from lightning_sagemaker._types import LightningModule, Trainer

_of_process: TogetherRank | None = None


class TogetherRank:
    """This process, after it has joined the others.

    Args:
        number: Global rank.
        world_size: Number of ranks.

    Attributes:
        address: Host and port of the store for ``init_process_group``, which ``MASTER_ADDR`` and
            ``MASTER_PORT`` are set to.
        restarts: Whether this process replaces an earlier one.

    Raises:
        RecoveryError: If some ranks are to join later.
        SystemExit: If the job has ended meanwhile.

    """

    def __init__(self, number: int, world_size: int) -> None:
        host = os.environ.get(wire.HOST, "127.0.0.1")
        self._server = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        info: wire.Info = {"host": host, "store": self._server.port, "together": True}
        self._client = CoordinatorClient(os.environ[wire.ADDRESS], os.environ[wire.TOKEN], number, info, _end)
        reply = self._client.start()
        if reply["kind"] != "first":
            raise SystemExit(reply.get("code", 1))
        if len(reply["order"]) != world_size:
            raise RecoveryError(
                f"{len(reply['order'])} of {world_size} ranks are present, and each has a part of the model. HINT: start"
                " supervise with a fixed number of --hosts."
            )
        self.restarts = reply["quorum"] > 1 and reply["step"] > 0
        first = reply["infos"][0]
        self.address = str(first["host"]), int(first["store"])
        os.environ.update(
            MASTER_ADDR=self.address[0], MASTER_PORT=str(self.address[1]), TORCHELASTIC_USE_AGENT_STORE="True"
        )
        os.environ.setdefault("TORCHELASTIC_RESTART_COUNT", "0")  # torch 2.5 reads it if an agent serves the store
        self._has_failed = self._has_finished = False
        hook = sys.excepthook

        def failed(*error: object) -> None:
            self._has_failed = True
            hook(*error)  # type: ignore[arg-type]

        sys.excepthook = failed
        atexit.register(self.finish)

    def report(self, step: int) -> None:
        """Report a completed step."""
        self._client.report(step)

    def finish(self) -> None:
        """Report the end of training, after which a lost rank is not replaced, unless the script has failed."""
        if not self._has_finished and not self._has_failed:
            self._has_finished = True
            self._client.finish()


def _end() -> None:
    """Exit, as another rank is lost and a collective that this one waits for would not return."""
    os._exit(wire.RESTART)


def meet(number: int, world_size: int) -> TogetherRank:
    """Wait for the other ranks. Collective; later calls in a process return the first one's result."""
    global _of_process
    if _of_process is None:
        _of_process = TogetherRank(number, world_size)
        rank_zero_info(
            f"Recovery by restarts: if one of the {world_size} ranks is lost, all are restarted, and resume from copies in"
            " memory if there are some (MemoryCheckpoint), else from the newest checkpoint."
        )
    return _of_process


class RestartsTogether(Callback):
    """The first of a Trainer's callbacks: makes a restarted fit resume, and reports its steps and its end."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Enable the search for checkpoints."""
        if _of_process is not None and _of_process.restarts:
            resume_from_newest(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        """Report the step."""
        if trainer.is_global_zero and _of_process is not None:
            _of_process.report(trainer.global_step)

    def on_fit_end(self, *_: object) -> None:
        """Report the end, as later code is not repeated if a rank is lost."""
        if _of_process is not None:
            _of_process.finish()
