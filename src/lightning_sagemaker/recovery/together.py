# SPDX-License-Identifier: Apache-2.0
"""Ranks that cannot do without each other, as each has a part of the model: when one is lost, all are started again.

The coordinator brings them together as it does those that recover in the job, so it notices a frozen rank too, and a
restart is that of the processes only. They do not vote: rank zero reports its steps.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING

import torch.distributed as dist

from lightning_sagemaker._compat.trainer import callbacks_of
from lightning_sagemaker._lightning import Callback, rank_zero_info
from lightning_sagemaker.callbacks.auto_resume import AutoResume
from lightning_sagemaker.recovery import wire
from lightning_sagemaker.recovery.coordinator_client import CoordinatorClient, RecoveryError

if TYPE_CHECKING:
    from lightning_sagemaker._types import LightningModule, Trainer

_of_process: TogetherRank | None = None


class TogetherRank:
    """This process, which has met the others.

    Args:
        number: Its rank.
        world_size: Number of ranks.

    Attributes:
        address: Host and port of the store by which ``init_process_group`` finds the others; ``MASTER_ADDR`` and
            ``MASTER_PORT`` hold them from now on.
        restarts: Whether there has been another process in its place.

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
        os.environ.setdefault("TORCHELASTIC_RESTART_COUNT", "0")  # torch 2.5 asks for it where an agent has the store
        self._has_failed = self._has_finished = False
        hook = sys.excepthook

        def failed(*error: object) -> None:
            self._has_failed = True
            hook(*error)  # type: ignore[arg-type]

        sys.excepthook = failed
        atexit.register(self.finish)

    def report(self, step: int) -> None:
        """Say that a step is over."""
        self._client.report(step)

    def finish(self) -> None:
        """Say that nothing is left for which a rank that is lost would be missed, unless the script has failed."""
        if not self._has_finished and not self._has_failed:
            self._has_finished = True
            self._client.finish()


def _end() -> None:
    """Another rank is lost. What this one waits for would not return."""
    os._exit(wire.RESTART)


def meet(number: int, world_size: int) -> TogetherRank:
    """Wait for the other ranks. Collective; the first call of a process counts."""
    global _of_process
    if _of_process is None:
        _of_process = TogetherRank(number, world_size)
        rank_zero_info(
            f"Recovery by restarts: if one of the {world_size} ranks is lost, all are restarted, and resume from copies in"
            " memory if there are some (MemoryCheckpoint), else from the newest checkpoint."
        )
    return _of_process


class RestartsTogether(Callback):
    """The first of a Trainer's callbacks: has a restarted fit resume, and says how far it is, and when it is over."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Have checkpoints searched."""
        if _of_process is not None and _of_process.restarts:
            for callback in callbacks_of(trainer):
                if isinstance(callback, AutoResume):
                    callback.search()

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        """Called for each batch."""
        if trainer.is_global_zero and _of_process is not None:
            _of_process.report(trainer.global_step)

    def on_fit_end(self, *_: object) -> None:
        """What follows is not repeated if a rank is lost."""
        if _of_process is not None:
            _of_process.finish()
