# SPDX-License-Identifier: Apache-2.0
"""An output without a reader (``| head -1``), space or letters for what is printed, without a traceback."""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys
from collections.abc import Iterator

from lightning_sagemaker.errors import about_system

EXIT_CODE = 128 + signal.SIGPIPE if hasattr(signal, "SIGPIPE") else 1
"""As a shell says it of a program that the signal has ended."""


@contextlib.contextmanager
def quiet_pipe() -> Iterator[None]:
    """End the program quietly if what it prints has no reader any more, in one sentence if it cannot be written.

    Characters that the output's encoding lacks are printed as escapes, as Python does on standard error. Other broken
    pipes and full disks stay errors.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    is_printed = False
    try:
        yield
        is_printed = True
        _flush()
    except BrokenPipeError:
        if not _has_no_reader():
            raise
        drop_output()
        sys.exit(EXIT_CODE)
    except OSError as error:
        if not drop_output() and not is_printed:  # a second attempt may find nothing to write
            raise
        print(f"error: {about_system(error) or error}", file=sys.stderr)
        sys.exit(2)


def drop_output() -> bool:
    """Drop what was printed if it cannot be written, at which Python would complain when it ends; whether it was."""
    try:
        _flush()
    except OSError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
        return True
    return False


def _flush() -> None:
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def _has_no_reader() -> bool:
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (AttributeError, OSError, ValueError):  # Windows; a stream without a number; a closed one
        return False
    return bool(poll.poll(0))
