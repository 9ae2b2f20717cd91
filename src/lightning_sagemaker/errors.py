# SPDX-License-Identifier: Apache-2.0
"""What commands raise for a user's mistake."""

from __future__ import annotations

import difflib
import errno
import os
import shutil
import subprocess
import traceback
from collections.abc import Iterable

_FEW = 25
"""Names that fit into a message."""
_NO_THREAD = "can't start new thread"
"""Message of Python's RuntimeError where the system's limit of processes is reached."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of errors of a full disk, an exhausted quota, or a file that is as long as it may be."""


class CommandError(ValueError):
    """What a command was given cannot be used. The command shows it and ends with exit code 2."""


class LaunchError(CommandError):
    """A job that cannot be launched as described. Nothing has been uploaded or started."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The name in ``known`` that ``name`` was probably meant to be; None if none is near."""
    lower = {one.casefold(): one for one in sorted(known)}
    found = difflib.get_close_matches(name.casefold(), lower, n=1)
    return lower[found[0]] if found else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """What to write in place of ``name``: the nearest name, else the known ones if they are few."""
    names = sorted(known)
    near = nearest(name, names)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"choose one of {', '.join(names)}." if len(names) <= _FEW else f"none of the {len(names)} known is similar."


def pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """What a repeatable option ``NAME=VALUE`` was given.

    Raises:
        LaunchError: If a text is something else.

    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise LaunchError(f"{option} {text!r} was given. HINT: write {option} NAME=VALUE.")
        if name in found:
            raise LaunchError(f"{option} names {name!r} twice. HINT: give it once.")
        found[name] = value
    return found


def about_system(error: Exception) -> str | None:
    """What to do about a file, folder, disk, program or limit of the system; None for other errors."""
    is_write = hasattr(error, "characters_written")  # to a pipe that does not block
    if (isinstance(error, BlockingIOError) and not is_write) or str(error) == _NO_THREAD:
        return (
            "No further process or thread can be started here. HINT: raise the limit (`ulimit -u`, --pids-limit of a"
            " container), or end other processes."
        )
    if not isinstance(error, OSError):
        return None
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        *_, reason = error.args[0][0]  # of the first of all files that were not copied
        return f"{reason}. HINT: give a folder that can be written, on a disk with space."
    path = error.filename2 or error.filename
    name = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else None
    if is_full(error):  # without a name if the file was open already, as standard output is
        what = "the output" if name is None else repr(name)
        return f"{what} cannot be written: {error.strerror}. HINT: free disk space, or raise its limit."
    if error.errno is None or name is None:
        return None
    if not os.path.dirname(name) and _origin(error) == subprocess.__name__:
        return f"the program {name!r} cannot be started: {error.strerror}. HINT: install it, or add its folder to PATH."
    return f"{name!r}: {error.strerror}. HINT: give a path that exists, or that can be created and written."


def is_full(error: OSError) -> bool:
    """Whether a disk, a quota or a file's permitted size was exhausted."""
    return error.errno in FULL


def _origin(error: BaseException) -> str:
    """Name of the module that raised an error."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals["__name__"])
