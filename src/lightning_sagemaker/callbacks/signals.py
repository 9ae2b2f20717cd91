# SPDX-License-Identifier: Apache-2.0
"""Stop signals: handlers that only set a flag."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

from lightning_sagemaker.events import Event

_Handler = Callable[[int, FrameType | None], object] | int | None

_AT_ONCE = 1.0
"""Seconds that a process without unsaved state has to exit by itself."""

_pending: set[int] = set()
"""Signals that arrived at the end of a fit or an evaluation, too late to act on them."""


class StopSignals:
    """Records when the first signal arrived. Python runs handlers in the main thread: they must not block.

    A thread is notified of each signal as well, as the main thread may be blocked in a call that waits for another
    process.

    Args:
        numbers: Signals to handle.
        patience: Seconds that the process may continue without a heartbeat after a signal; then it exits, as it
            may be waiting for a process that is gone.
        exit_code: Exit code of a process that is terminated this way.

    """

    def __init__(self, numbers: Sequence[signal.Signals], patience: float, exit_code: int) -> None:
        self._numbers, self._patience, self._exit_code = tuple(numbers), patience, exit_code
        self._before: dict[signal.Signals, _Handler] = {}
        self._alive = 0.0
        self._over = Event()
        self._pipe: tuple[int, int] | None = None
        self._noted: dict[int, int] = {}
        self._leaves: Callable[[], None] | None = None
        self._has_nothing = False
        self.arrived: float | None = None
        """Time of the first signal, by ``time.monotonic``; None before."""

    def install(self) -> None:
        """Install the handlers. Must be called in the main thread; does nothing elsewhere."""
        if threading.current_thread() is threading.main_thread() and not self._before:
            self._over = Event()
            self.arrived = None
            self._noted.clear()
            self._listen()
            self._before = {number: signal.signal(number, self._note) for number in self._numbers}
            if _pending:
                _pending.clear()
                self._arrive()

    def uninstall(self) -> None:
        """Restore the previous handlers. A signal that arrived too late stops the next fit or evaluation.

        Raises:
            KeyboardInterrupt: If that signal was SIGINT.

        """
        pending = set(self._noted) if sys.exc_info()[0] is None else set()  # otherwise the process is about to exit
        self._noted.clear()
        self._restore()
        if signal.SIGINT in pending:
            raise KeyboardInterrupt
        _pending.update(pending)

    def _restore(self) -> None:
        self._over.set()
        self.leave_by(None)
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before.clear()
        if self._pipe is not None:
            signal.set_wakeup_fd(-1)
            os.close(self._pipe[1])  # the thread reads end-of-file, and closes its end
            self._pipe = None

    def is_alive(self) -> None:
        """Record a heartbeat."""
        self._alive = time.monotonic()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted[number] = self._noted.get(number, 0) + 1
        if number == signal.SIGINT and self._noted[number] > 1:
            raise KeyboardInterrupt  # a second Ctrl-C does not wait
        self._arrive()
        leave, self._leaves = self._leaves, None
        if leave is not None:
            leave()

    def leave_by(self, leave: Callable[[], None] | None) -> None:
        """While there is nothing to save, call ``leave`` in the handler, so that the process exits at once; None to stop."""
        self._leaves = leave
        self._has_nothing = leave is not None
        if leave is not None and self.arrived is not None:
            leave()

    def _arrive(self) -> None:
        if self.arrived is None:
            self.arrived = self._alive = time.monotonic()
            threading.Thread(target=self._watch, args=(self._over,), name="stop-signal", daemon=True).start()

    def _listen(self) -> None:
        reading, writing = os.pipe()
        if hasattr(os, "set_blocking"):  # not on Windows before Python 3.12
            os.set_blocking(writing, False)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if before != -1:  # an event loop uses it, which is left in place
            signal.set_wakeup_fd(before)
            os.close(reading)
            os.close(writing)
            return
        self._pipe = reading, writing
        threading.Thread(target=self._read_pipe, args=(reading,), name="stop-signal-pipe", daemon=True).start()

    def _read_pipe(self, reading: int) -> None:
        numbers = bytes(self._numbers)
        with contextlib.suppress(OSError):
            while received := os.read(reading, 64):
                if any(number in numbers for number in received):
                    self._arrive()
        os.close(reading)

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(0.2):
            patience = _AT_ONCE if self._has_nothing else self._patience
            if time.monotonic() - self._alive > patience:
                message = f"no step completed in {patience:g} s since the stop signal; exiting\n"
                sys.stderr.write(f"lightning-sagemaker: {message}")
                sys.stderr.flush()
                os._exit(self._exit_code)
