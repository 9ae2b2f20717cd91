# SPDX-License-Identifier: Apache-2.0
"""A folder whose names are the same in any case and stay as they were first written, as on most Macs.

``python tests/machines/ignores_case.py FOLDER`` mounts it over the folder itself (FUSE), until it is stopped; needs fusepy
and libfuse 2.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from typing import Any

from fuse import FUSE, FuseOSError, Operations


class IgnoresCase(Operations):
    """Hands everything on to the folder below, by the name that is there."""

    def __init__(self, folder: str) -> None:
        self._below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # what is mounted over it hides its path

    def __call__(self, operation: str, *arguments: Any) -> Any:
        if not hasattr(self, operation):
            raise FuseOSError(errno.ENOSYS)
        return getattr(self, operation)(*arguments)

    def _real(self, path: str) -> str:
        """``path`` below, with the case that each of its parts has there."""
        real = f"/proc/self/fd/{self._below}"
        for part in path.strip("/").split("/"):
            if part and not os.path.lexists(os.path.join(real, part)):
                with contextlib.suppress(OSError):
                    part = next((name for name in os.listdir(real) if name.casefold() == part.casefold()), part)
            real = os.path.join(real, part)
        return real

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        found = os.lstat(self._real(path))
        names = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_atime", "st_mtime", "st_ctime")
        return {name: getattr(found, name) for name in names}

    def access(self, path: str, mode: int) -> None:
        if not os.access(self._real(path), mode):
            raise FuseOSError(errno.EACCES)

    def readdir(self, path: str, fh: int) -> Iterator[str]:
        yield from (".", "..", *os.listdir(self._real(path)))

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self._real(path), os.O_RDWR | os.O_CREAT, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(self._real(path), flags)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        os.truncate(self._real(path), length)

    def release(self, path: str, fh: int) -> None:
        os.close(fh)

    def fsync(self, path: str, datasync: int, fh: int) -> None:
        os.fsync(fh)

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(self._real(path), mode)

    def rmdir(self, path: str) -> None:
        os.rmdir(self._real(path))

    def unlink(self, path: str) -> None:
        os.unlink(self._real(path))

    def rename(self, old: str, new: str) -> None:
        os.rename(self._real(old), self._real(new))

    def symlink(self, target: str, source: str) -> None:
        os.symlink(source, self._real(target))

    def readlink(self, path: str) -> str:
        return os.readlink(self._real(path))

    def link(self, target: str, source: str) -> None:
        os.link(self._real(source), self._real(target))

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._real(path), stat.S_IMODE(mode))

    def chown(self, path: str, uid: int, gid: int) -> None:
        os.lchown(self._real(path), uid, gid)

    def mknod(self, path: str, mode: int, dev: int) -> None:
        os.mknod(self._real(path), mode, dev)

    def utimens(self, path: str, times: tuple[float, float] | None = None) -> None:
        os.utime(self._real(path), times)

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._real("/"))
        return {
            name: getattr(found, name)
            for name in ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_files", "f_namemax")
        }


if __name__ == "__main__":
    FUSE(IgnoresCase(sys.argv[1]), sys.argv[1], foreground=True, nonempty=True, allow_other=True, use_ino=False)
