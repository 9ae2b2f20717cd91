# SPDX-License-Identifier: Apache-2.0
"""Makes prepared data with missing or damaged files ready to be completed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning_sagemaker.recipes._common.data.cache import MANIFEST, all_files
from lightning_sagemaker.recipes._common.data.checksums import find_fault
from lightning_sagemaker.recipes._common.data.preparation import TOKENIZER_FOLDER
from lightning_sagemaker.recipes.albert_mlm.jobs import RECORDS, write_record
from lightning_sagemaker.text_files import write_text

STARTED = ".started.json"
"""File in the folder of an interrupted run: its settings."""


_PARTS = (".*.npy.*.part", ".*.json.part")
"""Files that a killed process was writing."""


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of this and interrupted runs from a folder that has its manifest."""
    for pattern in (STARTED, RECORDS, *_PARTS):
        for leftover in folder.glob(pattern):
            leftover.unlink(missing_ok=True)
    shutil.rmtree(folder / f".{TOKENIZER_FOLDER}.part", ignore_errors=True)


def other_files(folder: Path) -> Iterator[Path]:
    """Files in a folder, except hidden ones, which a file system or a killed process may have left."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return (path for path in files if path.parts[0][0] != ".")


def keep_complete(folder: Path, manifest: Mapping[str, Any]) -> tuple[int, int]:
    """Turn prepared data with missing or damaged files into that of an interrupted run.

    Args:
        folder: Folder of the shards.
        manifest: Manifest of the complete data; its file is deleted.

    Returns:
        Number of unchanged shards, and of all shards.

    """
    changed = {name for name, entry in all_files(manifest).items() if find_fault(folder, name, entry)}
    if any(name.startswith(f"{TOKENIZER_FOLDER}/") for name in changed):
        shutil.rmtree(folder / TOKENIZER_FOLDER, ignore_errors=True)
        changed = set(manifest["files"])
    shards: dict[str, dict[str, Any]] = {}
    for name, entry in manifest["files"].items():
        shards.setdefault(name.split("-")[1].removesuffix(".npy"), {})[name] = entry
    complete = {number: files for number, files in shards.items() if not changed & files.keys()}
    for number, files in complete.items():
        write_record(folder, int(number), files)
    write_text(folder / STARTED, json.dumps(manifest["settings"]))
    (folder / MANIFEST).unlink()
    return len(complete), len(shards)
