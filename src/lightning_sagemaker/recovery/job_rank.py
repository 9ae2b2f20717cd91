# SPDX-License-Identifier: Apache-2.0
"""This process as a rank of the job: it joins once, however many Trainers and fits its script has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lightning_sagemaker.recovery import on_gpu, wire
from lightning_sagemaker.recovery.coordinator_client import CoordinatorClient
from lightning_sagemaker.recovery.early import EarlyResults
from lightning_sagemaker.recovery.group import QuorumGroup
from lightning_sagemaker.recovery.replicas import Replicas

_of_process: JobRank | None = None


class JobRank:
    """A rank that has joined at the start, or during training.

    Args:
        number: Global rank.
        backend: Backend of the process groups, as for ``init_process_group``.
        replicas: Replicas of the model, if each is sharded across several ranks.

    Attributes:
        order: Ranks of the current quorum.
        joins: Whether this rank is about to join others that are training.
        seed: The job's seed of random numbers.
        client: Connection to the coordinator.
        replicas: Replicas of the model, if each is sharded across several ranks.
        early: Results of the script's collectives before its first step.

    Raises:
        SystemExit: If training has already finished.

    """

    def __init__(self, number: int, backend: str, replicas: Replicas | None = None) -> None:
        self.number, self._backend, self.replicas = number, backend, replicas
        self._group = QuorumGroup(os.environ.get(wire.HOST, "127.0.0.1"))
        info: wire.Info = {**self._group.info, "seed": torch.initial_seed() & 0xFFFFFFFF}
        if replicas is not None:
            info["replica"] = replicas.size
        self.client = CoordinatorClient(
            os.environ[wire.ADDRESS], os.environ[wire.TOKEN], number, info, self._group.leave
        )
        self.order = [number]
        reply = self.client.start()
        if reply["kind"] == "over":
            raise SystemExit(reply["code"])
        if reply["kind"] == "leave":
            raise SystemExit(0)
        self.joins = reply["kind"] == "join"
        self.restarts = not self.joins and reply["quorum"] > 1 and reply["step"] > 0
        """Whether all ranks were lost at once after a step, so that no rank has the training state."""
        self.follows = False
        """Whether an exception hook is set that makes the process exit for a restart if it fails after losses."""
        self.seed = int(info["seed"] if self.joins else reply["infos"][0]["seed"])
        self._form(reply, 0 if self.joins else reply["quorum"])
        self.early = EarlyResults(self._group.store)
        self._of_epoch: EarlyResults | None = None
        if self.joins:
            self.early.replay(number, reply["peers"])
        else:
            self.early.record(len(self.order))

    def begin_epoch(self, epoch: int) -> None:
        """Record results of collectives in the script's hooks at the start of an epoch, until its first batch."""
        self._of(epoch).record(len(self.order))

    @contextmanager
    def answered(self, epoch: int) -> Iterator[None]:
        """Context in which collectives of the script return what the others received at the start of the epoch."""
        self._of(epoch).replay(self.number, self._others)
        try:
            yield
        finally:
            self.end_early()

    def _of(self, epoch: int) -> EarlyResults:
        self.end_early()
        if self._of_epoch is not None:
            self._of_epoch.forget()
        self._of_epoch = EarlyResults(self._group.store, f"epoch-{epoch}")
        return self._of_epoch

    def end_early(self) -> None:
        """Stop recording or replaying: the first step of training or of an epoch begins, or the rank joins the others."""
        if self._of_epoch is not None:
            self._of_epoch.end()
        self.early.end()

    def form(self, reply: wire.Reply) -> None:
        """Create the default group of a quorum. Collective over its ranks."""
        self.end_early()
        self._form(reply, reply["quorum"])
        self.joins = False

    def _form(self, reply: wire.Reply, quorum: int) -> None:
        order = self.order = reply["order"]
        number, client, replicas = order.index(self.number), self.client, self.replicas
        self._others = [info for rank, info in zip(order, reply["infos"], strict=True) if rank != self.number]
        self._group.form(
            self._backend,
            quorum,
            number,
            reply["infos"],
            is_lost=lambda: client.changed,
            subgroups=lambda timeout: None if replicas is None else replicas.form(order, timeout),
        )

    def is_whole(self, device: torch.device) -> bool:
        """Whether the current quorum has lost no rank, and no collective has failed. Collective over it.

        Args:
            device: Device of this process.

        """
        return not self.client.changed and on_gpu.is_whole(device)


def job_rank(number: int, backend: str, replicas: Replicas | None = None) -> JobRank:
    """The rank of this process; the arguments are those of the first call."""
    global _of_process
    if _of_process is None:
        _of_process = JobRank(number, backend, replicas)
    return _of_process
