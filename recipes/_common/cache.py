# SPDX-License-Identifier: Apache-2.0
"""A folder made once, whole or not at all: the manifest says what is in it and with which settings it was made."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning_sagemaker import SageMakerJob

MANIFEST = "manifest.json"


def settings_key(settings: Mapping[str, Any]) -> str:
    """A short name that changes with the settings."""
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=8).hexdigest()


def read_manifest(folder: Path, settings: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """The manifest, if ``folder`` is a whole cache made with ``settings``, if given; otherwise ``None``."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        sizes = {name: (folder / name).stat().st_size for name in manifest["files"]}
        whole = all(size == manifest["files"][name]["bytes"] for name, size in sizes.items())
        as_wanted = settings is None or manifest["key"] == settings_key(settings)
        return manifest if whole and as_wanted else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def build_once(
    folder: Path, settings: Mapping[str, Any], build: Callable[[Path], dict[str, Any]]
) -> tuple[dict[str, Any], bool]:
    """Make the cache at ``folder`` unless it is there and whole.

    Built in a temporary directory beside it, the manifest last, then renamed: whoever sees ``folder`` sees all of it.
    Several hosts with a common disk may do this at the same time: the first to finish wins, the others use its cache.

    Args:
        folder: Of the cache.
        settings: Everything that decides its content.
        build: Fills an empty directory and returns the manifest, which must have ``files``.

    Returns:
        The manifest, and whether this call made the cache.

    """
    manifest = read_manifest(folder, settings)
    if manifest is not None:
        return manifest, False
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        manifest = {"key": settings_key(settings), "settings": dict(settings), **build(staging)}
        manifest["digest"] = settings_key(manifest["files"])
        (staging / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
        staging.chmod(0o755)
        return _publish(staging, folder, settings, manifest)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _publish(
    staging: Path, folder: Path, settings: Mapping[str, Any], manifest: dict[str, Any]
) -> tuple[dict[str, Any], bool]:
    while True:
        try:
            os.rename(staging, folder)
            return manifest, True
        except OSError:
            if not folder.exists():
                raise
        theirs = read_manifest(folder, settings)
        if theirs is not None:
            return theirs, False
        # A damaged cache: moved away first, so that nobody reads it while it is being deleted.
        aside = folder.with_name(f".{folder.name}-damaged-{uuid.uuid4().hex}")
        try:
            os.rename(folder, aside)
        except FileNotFoundError:
            continue
        shutil.rmtree(aside, ignore_errors=True)


def file_entry(path: Path) -> dict[str, Any]:
    """What the manifest says of one file: its size and checksum."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"bytes": path.stat().st_size, "blake2b": digest.hexdigest()}


def default_cache(job: SageMakerJob, recipe: str) -> Path:
    """The user's cache folder; in a training job a temporary one, which SageMaker does not upload."""
    if job.in_container:
        return Path(tempfile.gettempdir()) / f"lightning-sagemaker-{os.getuid()}" / recipe
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "lightning-sagemaker" / recipe
