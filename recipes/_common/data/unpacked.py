# SPDX-License-Identifier: Apache-2.0
"""Files compressed one by one, as datasets are published: gzip, bzip2, xz, zstd, and zip archives with one file."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePath
from typing import IO, Any

SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".zip")

_ZIP = b"PK\x03\x04"
_OFFICE = ("xl/", "word/", "META-INF/")
"""Folders in office documents, which are zip archives, too."""
_TAR = (257, b"ustar")
"""Offset and value of the bytes that identify a tar archive."""


def inner_name(name: str) -> str:
    """The name of a file without the suffix of its compression."""
    for suffix in SUFFIXES:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return name


def is_hidden(path: PurePath) -> bool:
    """Whether a program made the file for its own use, such as an editor's or notebook's backup, or macOS metadata."""
    return any(part.startswith((".", "__MACOSX", "~$")) for part in path.parts)


@contextlib.contextmanager
def open_unpacked(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The name that identifies a file's kind, and its bytes; compressed files, detected by their header, are decompressed.

    Raises:
        OSError: If the file cannot be opened.
        ValueError: If it is damaged, or an archive of several files.
        ModuleNotFoundError: If it is compressed by zstd and pyarrow is missing.

    """
    with path.open("rb") as file:
        start = file.read(len(_ZIP))
    opener = next((opener for mark, opener in _OPENERS.items() if start.startswith(mark)), None)
    try:
        if start == _ZIP:
            with _only_member(path) as found:
                yield found
        elif opener is None:
            with path.open("rb") as file:
                yield path.name, file
        else:
            with opener(path) as stream:
                buffered = io.BufferedReader(stream)
                _check_no_archive(buffered)
                yield inner_name(path.name), buffered
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        raise ValueError(f"it is compressed, and damaged or incomplete ({error})") from error


@contextlib.contextmanager
def _only_member(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(path) as archive:
        if any(name.startswith(_OFFICE) for name in archive.namelist()):
            with path.open("rb") as file:
                yield path.name, file
            return
        files = [info for info in archive.infolist() if not info.is_dir() and not is_hidden(Path(info.filename))]
        if len(files) != 1:
            raise ValueError(f"it is a zip archive of {len(files)} files. HINT: unpack it, and give the file or folder")
        if files[0].flag_bits & 1:
            raise ValueError("it is a zip archive with a password. HINT: unpack it")
        with archive.open(files[0]) as stream:
            yield Path(files[0].filename).name, stream


def _check_no_archive(stream: io.BufferedReader) -> None:
    place, mark = _TAR
    if stream.peek(place + len(mark))[place:].startswith(mark):
        raise ValueError("it is a tar archive. HINT: unpack it, and give the file or folder")


class _Streams(io.RawIOBase):
    """Several compressed streams, one after the other, and zero bytes between them.

    ``bz2.open`` and ``lzma.open`` end, without an error, at damage after the first of them.

    Args:
        path: The file.
        begin: Creates what decompresses one stream.

    """

    def __init__(self, path: Path, begin: Callable[[], Any]) -> None:
        self._file, self._begin = path.open("rb"), begin
        self._one: Any = None
        self._packed = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Decompress some bytes; 0 at the end.

        Raises:
            EOFError: If the file ends within a stream, or is damaged; `lzma` raises ``LZMAError``.

        """
        while True:
            if not self._packed and (self._one is None or self._one.needs_input):
                self._packed = self._file.read(io.DEFAULT_BUFFER_SIZE)
                if not self._packed and self._one is None:
                    return 0
                if not self._packed:
                    raise EOFError("it ends within a compressed stream")
            if self._one is None:
                self._packed = self._packed.lstrip(b"\0")
                if not self._packed:
                    continue
                self._one = self._begin()
            try:
                data = self._one.decompress(self._packed, len(buffer))
            except OSError as error:
                raise EOFError(str(error)) from error
            self._packed = b""
            if self._one.eof:
                self._packed, self._one = self._one.unused_data, None
            if data:
                buffer[: len(data)] = data
                return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def _open_zstd(path: Path) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd")


_OPENERS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": partial(_Streams, begin=bz2.BZ2Decompressor),
    b"\xfd7zX": partial(_Streams, begin=lzma.LZMADecompressor),
    b"(\xb5/\xfd": _open_zstd,
    **{bytes([first]) + b"*M\x18": _open_zstd for first in range(0x50, 0x60)},  # a frame to skip, as pzstd writes it
}
"""First bytes of a compressed file -> function that opens it."""
