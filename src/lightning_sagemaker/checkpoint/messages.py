# SPDX-License-Identifier: Apache-2.0
"""Messages between the threads that write one checkpoint, through the rendezvous store."""

from __future__ import annotations

import base64
import pickle
import threading
import time
from typing import Any

import torch.distributed as dist

from lightning_sagemaker.checkpoint.atomic_write import CheckpointError

_PAUSE = 0.02
_TIME_LIMIT = 1800.0
"""Seconds that a thread waits for a message, as torch's collectives do."""


class Refusal(Exception):
    """Received instead of the expected message."""


class Messages:
    """Messages of one checkpoint. Polled: a blocking store call would keep training from using the store.

    Args:
        store: Store of the processes.
        name: Name of the checkpoint; the same on all processes.
        given_up: Event that aborts all waiting.

    """

    def __init__(self, store: dist.Store, name: str, given_up: threading.Event) -> None:
        self._store, self._name, self._given_up = store, name, given_up

    def publish(self, topic: str, value: object) -> None:
        """Publish a message; ``value`` is pickled."""
        self._store.set(f"{self._name}/{topic}", base64.b64encode(pickle.dumps(value)).decode())

    def wait_for(self, topic: str, instead: str | None = None) -> Any:
        """Wait for a message.

        Args:
            topic: Topic of the message.
            instead: Topic of a failure, whose message is received instead and has the reason.

        Raises:
            Refusal: If a message with the topic ``instead`` arrives; has its text.
            CheckpointError: If nothing arrives in time.

        """
        deadline = time.monotonic() + _TIME_LIMIT
        while not self._is_published(topic):
            if instead is not None and self._is_published(instead):
                raise Refusal(self._get(instead))
            if time.monotonic() > deadline or self._given_up.is_set():
                raise CheckpointError(
                    f"no message about {topic!r} (rank, and what it did). HINT: see the logs of the other processes."
                )
            time.sleep(_PAUSE)
        return self._get(topic)

    def forget(self, topic: str) -> None:
        """Remove a message that all have received."""
        self._store.delete_key(f"{self._name}/{topic}")

    def _is_published(self, topic: str) -> bool:
        return bool(self._store.check([f"{self._name}/{topic}"]))

    def _get(self, topic: str) -> Any:
        return pickle.loads(base64.b64decode(self._store.get(f"{self._name}/{topic}")))
