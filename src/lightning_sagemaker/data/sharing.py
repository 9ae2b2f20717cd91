# SPDX-License-Identifier: Apache-2.0
"""Checks that loader workers can pass their batches: through shared memory, announced through a socket.

If shared memory is not writable, training fails with a traceback; if the socket's path is too long, only a thread of the
worker fails, and training hangs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from functools import cache
from multiprocessing import util
from typing import Any

from lightning_sagemaker._lightning import MisconfigurationException, rank_zero_info
from lightning_sagemaker.preflight import unusable_shared_memory

_SHORT = "/tmp"
_PATH = 104 if sys.platform == "darwin" else 108
"""Maximum bytes of a socket's path with its terminator (sys/un.h)."""
_NAME = len("/pymp-xxxxxxxx/listener-xxxxxxxx") + 1
"""Path that multiprocessing appends to the temporary folder."""


def prepare_sharing(dataloader: Any) -> None:
    """Check that loader workers can pass their batches. Called before they are started.

    Raises:
        MisconfigurationException: If they cannot.

    """
    if not getattr(dataloader, "num_workers", 0):
        return
    if (problem := unusable_shared_memory()) is not None:
        raise MisconfigurationException(problem)
    if _is_too_long(tempfile.gettempdir()) and os.name == "posix":
        _shorten()


def _is_too_long(folder: str) -> bool:
    """Whether the path of multiprocessing's socket in this temporary folder is too long for any system."""
    return len(os.fsencode(folder)) + _NAME > _PATH


@cache
def _shorten() -> None:
    """Make multiprocessing create its folder, for this process and its children, at a short path."""
    before, tempfile.tempdir = tempfile.tempdir, _SHORT
    try:
        util.get_temp_dir()
    except OSError as error:
        raise MisconfigurationException(
            f"TMPDIR={before} is too long for the sockets of loader workers, and {_SHORT} cannot be written to"
            f" ({error.strerror}). HINT: set TMPDIR to a shorter folder."
        ) from error
    finally:
        tempfile.tempdir = before
    rank_zero_info(f"Loader workers use {_SHORT} for their sockets: TMPDIR={before} is too long.")
