# SPDX-License-Identifier: Apache-2.0
"""Assigns the parts of an asynchronous checkpoint to processes, with torch's planner, by messages; again after changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter, Metadata, SavePlan, SavePlanner

from lightning_sagemaker.checkpoint.messages import Messages, Refusal

if TYPE_CHECKING:
    from lightning_sagemaker._types import StateDict


class WritePlan:
    """Write plan of one process, kept across checkpoints.

    Args:
        rank: Rank of this process.
        world_size: Number of processes.

    Attributes:
        own: Plan of this process; of replicas, only one writes.
        metadata: Metadata of the checkpoint, on the first process.

    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        self._version: int | None = None
        self._has: list[SavePlan | None] = [None] * world_size
        self.own = SavePlan([])
        self.metadata: Metadata | None = None

    def forget(self) -> None:
        """Discard the plan, so that the next checkpoint creates a new one."""
        self._version = None

    def planner(self, state: StateDict, version: int, messages: Messages, place: str) -> tuple[SavePlanner, str]:
        """Create or reuse the plan, together with the other threads.

        Args:
            state: State of this process.
            version: Number that changes with the state's structure.
            messages: Messages of this checkpoint.
            place: Path of the checkpoint; the first process's is used.

        Returns:
            The planner that resolves the tensors for :attr:`own`, and the first process's ``place``.

        Raises:
            Refusal: If another process could not report its state.

        """
        planner = DefaultSavePlanner()
        planner.set_up_planner(state, None, self._rank == 0)
        has = planner.create_local_plan() if version != self._version else None
        self._version = version
        if self._rank == 0:
            self._agree(planner, has, messages, place)
        else:
            messages.publish(f"{self._rank}/has", has)
            place, own = messages.wait_for(f"{self._rank}/writes", instead="end")
            messages.forget(f"{self._rank}/writes")
            self.own = own if own is not None else self.own
        planner.finish_plan(self.own)
        return planner, place

    def _agree(self, planner: DefaultSavePlanner, has: SavePlan | None, messages: Messages, place: str) -> None:
        """Create the global plan, on the first process."""
        results = [has]
        for rank in range(1, self._world_size):
            try:
                results.append(messages.wait_for(f"{rank}/has", instead=f"{rank}/failed"))
            except Refusal as refusal:
                raise Refusal(f"rank {rank}: {refusal}") from None
            messages.forget(f"{rank}/has")
        plans: list[SavePlan | None] = [None] * self._world_size
        if any(one is not None for one in results):
            self._has = [new if new is not None else old for new, old in zip(results, self._has, strict=True)]
            known = [one for one in self._has if one is not None]  # of all processes, since the first checkpoint
            of_all, self.metadata = planner.create_global_plan(known)
            prepared = FileSystemWriter(".").prepare_global_plan(of_all)
            plans, self.own = [*prepared], prepared[0]
        for rank in range(1, self._world_size):
            messages.publish(f"{rank}/writes", (place, plans[rank]))
