# SPDX-License-Identifier: Apache-2.0
"""A debug log of the messages between ranks and coordinator: it shows which rank waits for what."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

SWITCH = "LIGHTNING_SAGEMAKER_RECOVERY_LOG"
"""Set to ``1`` to write the log to standard error, in the ranks and in ``lightning-sagemaker supervise``."""

log = logging.getLogger(__name__)
"""Logs, at level DEBUG, each request of a rank and its reply, and each change of the coordinator's state."""

_LONG = ("id", "infos", "peers")


def switch_on() -> None:
    """Write the log to standard error if the environment variable is set."""
    if os.environ.get(SWITCH) == "1" and not log.handlers:
        log.addHandler(handler := logging.StreamHandler())
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.setLevel(logging.DEBUG)
        log.propagate = False


def summary_of(message: Mapping[str, object]) -> str:
    """A message without its long values, the information about ranks."""
    return " ".join(f"{name}={getattr(value, 'value', value)}" for name, value in message.items() if name not in _LONG)
