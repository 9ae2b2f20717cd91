# SPDX-License-Identifier: Apache-2.0
"""A reader that has seen enough (``| head -1``) ends a command, without a traceback."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterator

EXIT_CODE = 128 + signal.SIGPIPE if hasattr(signal, "SIGPIPE") else 1
"""As a shell says it of a program that the signal has ended."""


@contextlib.contextmanager
def quiet_pipe() -> Iterator[None]:
    """End the program quietly if what it prints has no reader any more; other broken pipes stay errors."""
    try:
        yield
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _has_no_reader():
            raise
        nothing = os.open(os.devnull, os.O_WRONLY)  # Python writes what is left when it ends
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
        sys.exit(EXIT_CODE)


def _has_no_reader() -> bool:
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (AttributeError, OSError, ValueError):  # Windows; a stream without a number; a closed one
        return False
    return bool(poll.poll(0))
