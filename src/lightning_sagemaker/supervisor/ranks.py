# SPDX-License-Identifier: Apache-2.0
"""The coordinator's state of a job, and of each of its ranks."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass, field
from typing import Any

from lightning_sagemaker.recovery import wire


@dataclass
class Settings:
    """A job's requirements for quorums.

    Attributes:
        world_size: Ranks of the job, which is the number of shards that its data has.
        minimum: Minimum number of ranks to continue.
        rejoin_timeout: Seconds to wait for a replacement before the others continue without it.
        silence: Seconds without a heartbeat after which a rank is lost.
        attempts: Times that the same step may fail.
        patience: Seconds to wait for the minimum.
        to_begin: Number of ranks to start training with; the others join later. None: all.

    """

    world_size: int
    minimum: int = 1
    rejoin_timeout: float = 0.0
    silence: float = 5.0
    attempts: int = 3
    patience: float = 60.0
    to_begin: int | None = None

    @property
    def fewest(self) -> int:
        """Number of ranks to start training with."""
        return self.to_begin or self.world_size


@dataclass
class Member:
    """One process, as long as its connection lasts.

    Attributes:
        rank: Its rank in the job.
        connection: To it.
        info: Information for the others.
        heard: Time of its last heartbeat.
        joined: Number of its first quorum.
        starting: Id of its request, while it waits for the first quorum.
        asking: Id of its request, while it waits for a later quorum.
        at: Its training position; None if it has no state.
        admits: Whether the quorum that it asks for may have replacements.
        sending: Lock for sending.

    """

    rank: int
    connection: socket.socket
    info: dict[str, Any]
    heard: float
    joined: int | None = None
    starting: int | None = None
    asking: int | None = None
    at: list[int] | None = None
    admits: bool = True
    sending: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, message: dict[str, Any]) -> None:
        """Send it a message; a lost connection is detected elsewhere."""
        with self.sending, contextlib.suppress(OSError):
            wire.send(self.connection, message)
