# SPDX-License-Identifier: Apache-2.0
"""The files of a cache, each verified against its size and checksum in the manifest before it is first read.

Imports neither torch nor transformers, because many worker processes import it.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_sagemaker.recipes._common.data.cache import MANIFEST, all_files
from lightning_sagemaker.recipes._common.data.checksums import find_fault

_INTACT, _DAMAGED = 1, 2
"""State of a file after its comparison."""

_log = logging.getLogger(__name__)

Entries = Mapping[str, Mapping[str, Any]]


class DamagedFileError(ValueError):
    """A file of a cache does not match its manifest entry."""

    def __init__(self, message: str) -> None:
        # From a loader's worker, torch recreates the error with the worker's traceback before the message.
        super().__init__(message.rpartition(f"{type(self).__name__}: ")[2].strip())


class CheckedFiles:
    """Files of one cache.

    A run may read only a part of a large cache in its first hours, so a file is verified when it is first needed, not
    when the cache is opened. Loader workers that were forked from the same training process share the results, so each
    file is verified once.

    Args:
        folder: Folder of the cache.
        entries: Name -> entry of the manifest. Of files without a checksum only the size is verified.

    """

    def __init__(self, folder: Path, entries: Entries) -> None:
        self._folder, self._entries = folder, entries
        self._places = {name: place for place, name in enumerate(entries)}
        # Memory shared by forked processes; processes started in another way have their own.
        self._checked = np.frombuffer(mmap.mmap(-1, max(1, len(entries))), dtype=np.uint8)

    @classmethod
    def of(cls, folder: Path) -> CheckedFiles:
        """All files of the cache in ``folder``."""
        return cls(folder, all_files(json.loads((folder / MANIFEST).read_text())))

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def check(self, names: Iterable[str]) -> None:
        """Verify those files that were not verified before.

        Raises:
            DamagedFileError: If a file is missing or has changed.

        """
        left = [name for name in names if not self._checked[self._places[name]]]
        # All workers start at the same time and need mostly the same files: each verifies them in another order.
        random.Random(os.getpid()).shuffle(left)
        for name in left:
            if not self._checked[self._places[name]]:  # by another worker, in between
                self._compare(name)
                self._checked[self._places[name]] = _INTACT

    def is_intact(self, name: str) -> bool:
        """As :meth:`check`, but a damaged file is logged, once for all workers forked from one process, not raised."""
        place = self._places[name]
        if not self._checked[place]:
            try:
                self._compare(name)
            except DamagedFileError as error:
                self._checked[place] = _DAMAGED
                skipped = int((self._checked == _DAMAGED).sum())
                what = "%s; training on other data instead (%d of %d files so far)"
                _log.warning(what, str(error).split(" HINT:")[0], skipped, len(self._entries))
            else:
                self._checked[place] = _INTACT
        return bool(self._checked[place] == _INTACT)

    def check_folder(self, name: str) -> None:
        """As :meth:`check`, for all files in a folder of the cache."""
        self.check(file for file in self._entries if file.startswith(f"{name}/"))

    def load(self, name: str) -> npt.NDArray[Any]:
        """An array, verified and read into memory."""
        self.check([name])
        array: npt.NDArray[Any] = np.load(self._folder / name)
        return array

    def map(self, name: str) -> npt.NDArray[Any]:
        """A memory-mapped array, not verified yet: call :meth:`check` before reading its values."""
        try:
            array: npt.NDArray[Any] = np.load(self._folder / name, mmap_mode="r")
        except Exception:  # numpy could not read the header
            self.check([name])
            raise
        return array

    def path(self, name: str) -> Path:
        """Path of a file, verified."""
        self.check([name])
        return self._folder / name

    def read_text(self, name: str) -> str:
        """A text file, verified and read."""
        return self.path(name).read_text(encoding="utf-8")

    def _compare(self, name: str) -> None:
        if fault := find_fault(self._folder, name, self._entries[name]):
            raise DamagedFileError(f"{fault}, in {self._folder}. {hint(self._folder)}")


def hint(folder: Path) -> str:
    """The hint for the error message of a damaged cache."""
    return (
        f"HINT: `lightning-sagemaker prepare --verify {folder}` lists all files that have changed; delete the folder and"
        " prepare again, or copy it again from its source."
    )
