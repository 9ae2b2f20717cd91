# SPDX-License-Identifier: Apache-2.0
"""Signals that ask a process to stop, noted and nothing else."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any


class StopSignals:
    """Notes when the first signal arrived. Python runs handlers between two lines of the main thread: they must not wait.

    Args:
        numbers: Of the signals.
        patience: Seconds that the process may go on without a sign of life after a signal; then it is ended. It may be
            waiting for a process that is gone.
        exit_code: Of such an end.

    """

    def __init__(self, numbers: Sequence[signal.Signals], patience: float, exit_code: int) -> None:
        self._numbers, self._patience, self._exit_code = tuple(numbers), patience, exit_code
        self._before: dict[signal.Signals, Any] = {}
        self._alive = 0.0
        self._over = threading.Event()
        self.arrived: float | None = None
        """When, in seconds of ``time.monotonic``."""

    def install(self) -> None:
        """Note signals from now on. Only the main thread can."""
        if threading.current_thread() is threading.main_thread() and not self._before:
            self._over.clear()
            self._before = {number: signal.signal(number, self._note) for number in self._numbers}

    def uninstall(self) -> None:
        """Handle signals as before."""
        self._over.set()
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before.clear()

    def is_alive(self) -> None:
        """A sign of life."""
        self._alive = time.monotonic()

    def _note(self, number: int, _: Any) -> None:
        if self.arrived is None:
            self.arrived = self._alive = time.monotonic()
            threading.Thread(target=self._watch, name="stop-signal", daemon=True).start()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            if time.monotonic() - self._alive > self._patience:
                message = f"no step for {self._patience:g} s after the signal to stop: this process ends\n"
                sys.stderr.write(f"lightning-sagemaker: {message}")
                sys.stderr.flush()
                os._exit(self._exit_code)
