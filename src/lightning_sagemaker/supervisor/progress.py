# SPDX-License-Identifier: Apache-2.0
"""The progress of a job: known to the first host's supervisor, which sends it to the others."""

from __future__ import annotations


class Progress:
    """Progress of a job.

    Attributes:
        quorum: Number of the current quorum; 0 before the first.
        step: Number of committed steps.
        finished: Whether the ranks have reached the end of their first fit.
        ended: Whether the ranks have received the message to exit, with a checkpoint.
        is_stopping: Whether the ranks have been stopped: one that exits is not replaced.
        together: Whether all ranks are restarted when one is lost, as each holds a part of the model.
        replica: Number of ranks that share a replica of the model; they are lost together.
        is_reachable: Whether a rank that is started now can take part.
        is_gone: Whether the coordinator is unreachable for good.

    """

    def __init__(self) -> None:
        self.quorum = self.step = 0
        self._active: list[int] = []
        self.finished = self.ended = self.is_stopping = self.together = self.is_gone = False
        self.is_reachable, self.replica = True, 1

    @property
    def has_started(self) -> bool:
        """Whether all ranks have joined."""
        return self.quorum > 0

    @property
    def trains(self) -> bool:
        """Whether ranks train, or form a quorum: not while all are lost."""
        return bool(self._active) and not (self.finished or self.ended or self.is_stopping)

    def status(self) -> dict[str, object]:
        """The state that is sent to the other hosts' supervisors."""
        names = ("step", "has_started", "finished", "ended", "together", "replica", "trains")
        return {name: getattr(self, name) for name in names}
