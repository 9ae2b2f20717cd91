# SPDX-License-Identifier: Apache-2.0
"""How the processes of a loader pass their batches: through shared memory, which they tell of through a socket.

Where the one cannot be written to the training ends in a traceback; where the other's path is too long, a thread of the
loader's process fails alone, and training waits for it for ever.
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
"""Bytes of a socket's path with its end (sys/un.h)."""
_NAME = len("/pymp-xxxxxxxx/listener-xxxxxxxx") + 1
"""What multiprocessing appends to the temporary folder."""


def prepare_sharing(dataloader: Any) -> None:
    """See that the processes of a loader can pass their batches. Called before they are started.

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
    """Have multiprocessing make its folder, which this process and those it starts keep, where paths are short."""
    before, tempfile.tempdir = tempfile.tempdir, _SHORT
    try:
        util.get_temp_dir()
    except OSError as error:
        raise MisconfigurationException(
            f"TMPDIR={before} is too long for the sockets of loader processes, and {_SHORT} cannot be written to"
            f" ({error.strerror}). HINT: set TMPDIR to a shorter folder."
        ) from error
    finally:
        tempfile.tempdir = before
    rank_zero_info(f"Loader processes meet in {_SHORT}: TMPDIR={before} is too long for their sockets.")
