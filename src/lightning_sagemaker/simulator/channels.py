# SPDX-License-Identifier: Apache-2.0
"""A host's view of a local folder: folders of its own, with a symlink for each file.

A container has folders there, which a walk from ``input/data`` enters; and what a script adds or deletes in them is not the
user's, nor another host's.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import sys
from pathlib import Path

from lightning_sagemaker.errors import LaunchError

MOST = 100_000
"""Maximum entries of such a view; a larger folder is one symlink."""


def clear(target: Path) -> None:
    """Remove an earlier channel, but not what its symlinks lead to."""
    if target.is_symlink():
        target.unlink()
    elif target.exists():
        shutil.rmtree(target)


def link_channel(source: Path, target: Path) -> None:
    """Make ``target`` a view of ``source``, in place of an earlier one.

    Args:
        source: The user's folder.
        target: Path of the channel on the host.

    Raises:
        LaunchError: If ``source`` is within ``target``, which would be replaced.

    """
    source, place = source.resolve(), target.parent.resolve() / target.name
    if place in (source, *source.parents):
        raise LaunchError(f"The channel's folder {str(source)!r} is within the host's own. HINT: choose another root.")
    clear(target)
    entries = list(itertools.islice(source.rglob("*"), MOST + 1))
    target.parent.mkdir(parents=True, exist_ok=True)
    if len(entries) > MOST:
        _say_symlink(source)
        target.symlink_to(source, target_is_directory=True)
        return
    target.mkdir()
    for path in sorted(entries):  # a folder before what is in it
        place = target / path.relative_to(source)
        if path.is_dir() and not path.is_symlink():
            place.mkdir()
        else:
            place.symlink_to(path.resolve(), target_is_directory=path.is_dir())


@functools.cache
def _say_symlink(source: Path) -> None:
    """Once, though each host has the channel."""
    print(
        f"lightning-sagemaker: {source} has more than {MOST} files: the hosts' channel is a symlink to it, so a walk from"
        " input/data does not enter it, and what a script deletes there is yours.",
        file=sys.stderr,
    )
