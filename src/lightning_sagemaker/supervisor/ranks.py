# SPDX-License-Identifier: Apache-2.0
"""What the coordinator knows of a job, and of each of its ranks."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass, field
from typing import Any

from lightning_sagemaker.recovery import wire


@dataclass
class Settings:
    """What a job asks of its quorums.

    Attributes:
        world_size: Ranks of the job, which is the number of shards that its data has.
        minimum: Ranks without which it does not go on.
        rejoin_timeout: Seconds for which a replacement is waited for before the others go on without it.
        silence: Seconds without a sign of life after which a rank is lost.
        attempts: Times that the same step may fail.
        patience: Seconds for which the minimum is waited for.
        to_begin: Ranks with which the training begins; the others join when they come. None: all.

    """

    world_size: int
    minimum: int = 1
    rejoin_timeout: float = 0.0
    silence: float = 5.0
    attempts: int = 3
    patience: float = 60.0
    to_begin: int | None = None


@dataclass
class Member:
    """One process, as long as its connection lasts.

    Attributes:
        rank: Its rank in the job.
        connection: To it.
        info: What the others shall know of it.
        heard: When it last gave a sign of life.
        joined: Number of its first quorum.
        starting: Number of its question, while it waits for the first quorum.
        asking: Number of its question, while it waits for a later quorum.
        at: Where in the training it is; None if it has no state.
        sending: Whose turn it is to send.

    """

    rank: int
    connection: socket.socket
    info: dict[str, Any]
    heard: float
    joined: int | None = None
    starting: int | None = None
    asking: int | None = None
    at: list[int] | None = None
    sending: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, message: dict[str, Any]) -> None:
        """Send it a message; whether it is still there shows elsewhere."""
        with self.sending, contextlib.suppress(OSError):
            wire.send(self.connection, message)
