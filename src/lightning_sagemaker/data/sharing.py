# SPDX-License-Identifier: Apache-2.0
"""How loader workers pass their batches: through shared memory, announced through a socket.

If the one is not writable, training fails with a traceback; if the other's path is too long, only a thread of the
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
"""Bytes of a socket's path with its terminator (sys/un.h)."""
_NAME = len("/pymp-xxxxxxxx/listener-xxxxxxxx") + 1
"""What multiprocessing appends to the temporary folder."""


def prepare_sharing(dataloader: Any) -> None:
    """Check that loader workers can pass their batches. Called before they are started.

    Raises:
        MisconfigurationException: If they cannot.

    """
    if not getattr(dataloader, "num_workers", 0):
        return
    if (problem := unusable_shared_memory()) is not None:
        raise MisconfigurationException(problem)
    if is_too_long(tempfile.gettempdir()) and os.name == "posix":
        _shorten()


def is_too_long(folder: str) -> bool:
    """Whether a socket of multiprocessing in this temporary folder has a path that no system takes."""
    return len(os.fsencode(folder)) + _NAME > _PATH


@cache
def _shorten() -> None:
    """Have multiprocessing create its folder, used by this process and its children, where paths are short."""
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
