# SPDX-License-Identifier: Apache-2.0
"""Data prepared once per host and cached under a hash of its settings."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning_sagemaker.recipes._common.data.cache import build_once, settings_key
from lightning_sagemaker.recipes._common.data.fingerprints import pretrained_fingerprint
from lightning_sagemaker.recipes._common.data.sources import option_of
from lightning_sagemaker.recipes._common.data.table_sources import fingerprint, remote_files
from lightning_sagemaker.recipes._common.data.tables import DataError

TOKENIZER_FOLDER = "tokenizer"


class Preparation(ABC):
    """All settings that determine a cache's content; subclasses are frozen dataclasses."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The settings as plain containers, with fingerprints of files and tokenizer."""

    @abstractmethod
    def build(self, folder: Path) -> dict[str, Any]:
        """Fill an empty folder and return its manifest, which must have ``files`` and ``vocab_size``."""

    def folder(self, cache: Path) -> Path:
        """Folder of these settings' data in ``cache``."""
        return cache / settings_key(self.settings())

    def run(self, cache: Path) -> tuple[dict[str, Any], bool]:
        """Build the data unless it exists; returns the manifest, and whether this call built it.

        Raises:
            DataError: If it cannot be written.

        """
        # Setting it also keeps the library from warning about the data loader's workers.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        remote_files.cache_clear()
        folder, settings = self.folder(cache), self.settings()
        try:
            return build_once(folder, settings, self.build)
        except OSError as error:  # of what is written; errors of what is read have been explained
            raise DataError(
                f"the data cannot be prepared in {cache}: {error}. HINT: set data.cache_dir to a folder that can be written,"
                " on a disk with space."
            ) from error


def table_settings(preparation: Any, version: int, builtin: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a preparation that has ``files`` (split -> source) and ``pretrained``.

    Args:
        preparation: Dataclass instance.
        version: Version of the cache's format.
        builtin: Name of an embedded source -> value that changes with its content.

    """
    plain = {key: value for key, value in asdict(preparation).items() if key not in ("files", "pretrained")}
    files, pretrained = preparation.files, preparation.pretrained
    sources = {
        split: [name, builtin[name]] if name in builtin else fingerprint(name, option_of(split))
        for split, name in files.items()
    }
    start = None if pretrained is None else pretrained_fingerprint(pretrained)
    return {**plain, "format": version, "sources": sources, "pretrained": start}
