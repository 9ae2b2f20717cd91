# SPDX-License-Identifier: Apache-2.0
"""A cache folder that is built atomically; its manifest lists its files and the settings it was built with."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning_sagemaker import SageMakerJob
from lightning_sagemaker.recipes._common.data.checksums import FAST, file_entry, find_damage

MANIFEST = "manifest.json"

_log = logging.getLogger(__name__)


def settings_key(settings: Mapping[str, Any]) -> str:
    """A short hash of the settings."""
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=8).hexdigest()


def load_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest, whether or not its files exist; ``None`` if the manifest is missing or damaged."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        is_whole = "key" in manifest and all(isinstance(entry, dict) for entry in all_files(manifest).values())
        return manifest if is_whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_manifest(folder: Path, settings: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """The manifest, if ``folder`` is a complete cache built with ``settings`` (if given); otherwise ``None``."""
    manifest = load_manifest(folder)
    if manifest is None or damages(folder, manifest):
        return None
    return manifest if settings is None or manifest["key"] == settings_key(settings) else None


def all_files(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Name -> entry of each file of the cache: its data, and other files such as a tokenizer's."""
    return {**manifest["files"], **manifest.get("others", {})}


def damages(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """A message for each file that is missing or has the wrong size; no file is read."""
    found = (find_damage(folder, name, entry) for name, entry in all_files(manifest).items())
    return [damage for damage in found if damage]


def build_once(
    folder: Path, settings: Mapping[str, Any], build: Callable[[Path], dict[str, Any]]
) -> tuple[dict[str, Any], bool]:
    """Build the cache at ``folder`` unless it exists and is complete.

    Built in a temporary directory next to ``folder``, the manifest last, then renamed: ``folder`` is never incomplete.
    Several hosts with a shared disk may do this at the same time: the first to finish wins, the others use its cache.

    Args:
        folder: Folder of the cache.
        settings: All settings that determine its content.
        build: Fills an empty directory and returns the manifest, which must have ``files``.

    Returns:
        The manifest, and whether this call built the cache.

    """
    manifest = read_manifest(folder, settings)
    if manifest is not None:
        return manifest, False
    _say_damages(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        manifest = complete_manifest(staging, settings, build(staging))
        (staging / MANIFEST).write_text(manifest_text(manifest))
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


def complete_manifest(folder: Path, settings: Mapping[str, Any], built: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a cache that was just built.

    Args:
        folder: Folder of the cache; hidden files are not part of it.
        settings: Settings that the cache was built with.
        built: Entries from the build; must have ``files``.

    """
    names = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file())
    others = {name: file_entry(folder / name) for name in names if name not in built["files"] and name[0] != "."}
    same = {name: {k: v for k, v in entry.items() if k != FAST} for name, entry in built["files"].items()}
    mine = {"key": settings_key(settings), "settings": dict(settings), "digest": settings_key(same)}
    return {**mine, **built, "others": others}


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """The manifest as JSON, as it is written to the file."""
    return json.dumps(manifest, indent=2, sort_keys=True) + "\n"


def _say_damages(folder: Path) -> None:
    manifest = load_manifest(folder)
    if manifest is not None and (found := damages(folder, manifest)):
        _log.warning("Rebuilding %s: %s.", folder, "; ".join(found))


def default_cache(job: SageMakerJob, recipe: str) -> Path:
    """The user's cache folder; in a training job, or without a home, a temporary one, which SageMaker does not upload."""
    home = os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~"), ".cache")
    if job.in_container or not Path(home).is_absolute():  # a user that the system does not know has no home
        return Path(tempfile.gettempdir()) / f"lightning-sagemaker-{os.getuid()}" / recipe
    return Path(home) / "lightning-sagemaker" / recipe
