# SPDX-License-Identifier: Apache-2.0
"""Exits a process whose aborted collective does not end: it is restarted, and nothing waits for it.

gloo can lose a wake-up: its thread drops a message that it cannot send to a rank that has just died.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

PATIENCE = 5.0
"""Seconds that an aborted collective may take; normally it takes milliseconds."""
_AGAIN = 0.25
"""Seconds between two checks."""
_COLLECTIVES = (
    "torch.distributed.distributed_c10d",
    "torch.distributed._functional_collectives",
    "torch.distributed.fsdp",
    "lightning_sagemaker.recovery.gradients",
)
"""Modules in which a thread waits for a collective. In others it computes or waits for data, which ends by itself."""


def exit_if_stuck(is_left: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Watch this process in another thread, after its collectives were aborted.

    Args:
        is_left: Whether the process has left its collectives.
        patience: Seconds that an aborted collective may take.

    """
    threading.Thread(target=_watch, args=(is_left, patience), name="stuck", daemon=True).start()


def _watch(is_left: Callable[[], bool], patience: float) -> None:
    since: dict[tuple[int, int, int], float] = {}
    while not is_left():
        now = time.monotonic()
        since = {place: since.get(place, now) for place in _waiting()}
        if any(now - begin > patience for begin in since.values()):
            sys.stderr.write(
                "lightning-sagemaker: a collective has not ended, though it was aborted after the loss of a rank; this"
                " process exits, and is restarted.\n"
            )
            sys.stderr.flush()
            os._exit(1)
        time.sleep(_AGAIN)


def _waiting() -> list[tuple[int, int, int]]:
    """Thread, frame and instruction of each thread that waits for a collective."""
    frames = sys._current_frames()
    return [
        (thread, id(frame), frame.f_lasti)
        for thread, frame in frames.items()
        if str(frame.f_globals.get("__name__")).startswith(_COLLECTIVES)
    ]
