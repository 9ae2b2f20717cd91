# SPDX-License-Identifier: Apache-2.0
"""Compares all files of prepared data with the checksums in the manifest: ``prepare --verify FOLDER_OR_ADDRESS``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lightning_sagemaker.data.damage import DataReadError
from lightning_sagemaker.errors import CommandError
from lightning_sagemaker.recipes._common.data.cache import MANIFEST, all_files, load_manifest
from lightning_sagemaker.recipes._common.data.checked import Entries, hint
from lightning_sagemaker.recipes._common.data.checksums import checksum_kind, find_fault
from lightning_sagemaker.recipes._common.data.remote import RemoteFolder, is_remote

_HINT_REMOTE = "HINT: copy these files again from their source, or prepare again to another address."
_AT_ONCE = 8
"""Files that are read from S3 at the same time."""


def verify(place: Path | str) -> int:
    """Print for each file whether it is unchanged since it was prepared; nothing is written.

    Args:
        place: Folder of one cache, or of several, as a recipe's ``data.cache_dir``; or ``s3://bucket/prefix``.

    Returns:
        The exit code: 1 if a file has changed, else 0.

    Raises:
        CommandError: If there is nothing to compare, or S3 cannot be read.

    """
    if is_remote(str(place)):
        return _verify_remote(str(place))
    folder = Path(place)
    caches = [folder] if (folder / MANIFEST).is_file() else sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))
    if not caches:
        raise CommandError(
            f"{folder} was given, but holds no {MANIFEST}. HINT: give the folder that `lightning-sagemaker prepare` or a"
            " recipe (data.cache_dir) has made."
        )
    return max(_verify_one(cache) for cache in caches)


def _verify_remote(address: str) -> int:
    try:
        remote = RemoteFolder(address)
        manifest = remote.manifest()
        if manifest is None:
            raise CommandError(f"{remote.address} was given, but holds no {MANIFEST}. HINT: check the prefix.")
        entries = all_files(manifest)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            problems = pool.map(lambda name: remote.find_change(name, entries[name]), entries)
            return _report(remote.address, entries, zip(entries, problems, strict=True), _HINT_REMOTE)
    except DataReadError as error:
        raise CommandError(str(error)) from error


def _verify_one(folder: Path) -> int:
    manifest = load_manifest(folder)
    if manifest is None:
        print(f"error: {folder / MANIFEST} is damaged. {hint(folder)}", file=sys.stderr)
        return 1
    entries = all_files(manifest)
    return _report(folder, entries, _compare(folder, entries), hint(folder))


def _report(where: Path | str, entries: Entries, found: Iterable[tuple[str, str | None]], advice: str) -> int:
    wrong = []
    for name, problem in found:
        if problem:
            wrong.append(name)
            print(f"WRONG   {problem}")
        elif checksum_kind(entries[name]):
            print(f"right   {name}")
        else:
            print(f"unknown {name} (its size is right; it was prepared without a checksum)")
    if wrong:
        print(f"error: {', '.join(wrong)} in {where} changed since they were prepared. {advice}", file=sys.stderr)
        return 1
    print(f"{len(entries)} files of {where} are unchanged")
    return 0


def _compare(folder: Path, entries: dict[str, dict[str, object]]) -> Iterator[tuple[str, str | None]]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # checksums are computed without the GIL
        problems = pool.map(lambda name: find_fault(folder, name, entries[name]), entries)
        yield from zip(entries, problems, strict=True)
