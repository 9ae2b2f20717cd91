# SPDX-License-Identifier: Apache-2.0
"""Limits the memory that a process may take from now on: by a control group where there are any, else by ``setrlimit``."""

import contextlib
import os
import resource
import sys
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def limit_memory(size: int) -> str:
    """Allow this process so many bytes beyond what it has; what does not fit kills it, or is a MemoryError.

    Returns:
        By what it is limited.

    """
    if sys.platform == "linux" and os.geteuid() == 0:
        for make, kind in ((_version_1, "cgroup v1"), (_version_2, "cgroup v2")):
            with contextlib.suppress(OSError, StopIteration):
                make(size)
                return kind
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (held + size, resource.RLIM_INFINITY))
    return "RLIMIT_DATA"


def remove_group(number: int) -> None:
    """Remove the group of a process that has ended."""
    for group in ROOT.glob(f"**/limited-{number}"):
        with contextlib.suppress(OSError):
            group.rmdir()


def _version_1(size: int) -> None:
    own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line)
    group = _new(ROOT / "memory" / own.rpartition(":")[2].lstrip("/"))
    _enter(group, "memory.limit_in_bytes", size)


def _version_2(size: int) -> None:
    own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    base = ROOT / own.removeprefix("0::").lstrip("/")
    with contextlib.suppress(OSError):  # it may be there already; a group with processes in it cannot have it
        (base / "cgroup.subtree_control").write_text("+memory")
    group = _new(base)
    with contextlib.suppress(OSError):
        (group / "memory.swap.max").write_text("0")
    _enter(group, "memory.max", size)


def _new(base: Path) -> Path:
    group = base / f"limited-{os.getpid()}"
    group.mkdir()
    return group


def _enter(group: Path, name: str, size: int) -> None:
    try:
        if not (group / name).is_file():
            raise OSError(f"no {name}")
        (group / name).write_text(str(size))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        group.rmdir()
        raise
