# SPDX-License-Identifier: Apache-2.0
"""A debug log of the messages between ranks and coordinator: it shows which rank waits for what."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

SWITCH = "LIGHTNING_SAGEMAKER_RECOVERY_LOG"
"""``1``: the log is written to standard error, by the ranks and by ``lightning-sagemaker supervise``."""

log = logging.getLogger(__name__)
"""At level DEBUG: each request of a rank and its answer, and each change of the coordinator's state."""

_LONG = ("id", "infos", "peers")


def switch_on() -> None:
    """Write the log, if the environment asks for it."""
    if os.environ.get(SWITCH) == "1" and not log.handlers:
        log.addHandler(handler := logging.StreamHandler())
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.setLevel(logging.DEBUG)
        log.propagate = False


def in_short(message: Mapping[str, object]) -> str:
    """A message without what each of its ranks is told about the others."""
    return " ".join(f"{name}={getattr(value, 'value', value)}" for name, value in message.items() if name not in _LONG)
