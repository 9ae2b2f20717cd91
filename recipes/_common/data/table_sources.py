# SPDX-License-Identifier: Apache-2.0
"""Files of tables by their source: a file, a folder, or an address in S3, whose files are copied while they are read."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from lightning_sagemaker.data.damage import DataReadError
from lightning_sagemaker.data.s3_objects import SCHEME, S3Objects, split_address
from lightning_sagemaker.recipes._common.data.fingerprints import file_fingerprint
from lightning_sagemaker.recipes._common.data.remote import is_remote
from lightning_sagemaker.recipes._common.data.tables import (
    SUFFIXES,
    DataError,
    choose_files,
    find_files,
    is_file_name,
    is_table_name,
)
from lightning_sagemaker.recipes._common.data.unpacked import SUFFIXES as PACKED
from lightning_sagemaker.recipes._common.data.unpacked import is_hidden

_PART = 8 << 20
"""Bytes of a request."""
_NAME = 60
"""Characters of a file name, of at most four bytes each: file systems allow 255."""


@dataclass(frozen=True)
class RemoteFile:
    """A file in S3.

    Args:
        bucket: Its bucket.
        key: Its key.
        bytes: Its size.
        etag: Changes with its content.

    """

    bucket: str
    key: str
    bytes: int
    etag: str

    @property
    def address(self) -> str:
        """``s3://bucket/key``."""
        return f"{SCHEME}{self.bucket}/{self.key}"


@dataclass(frozen=True)
class Files:
    """Files on this host.

    Args:
        paths: Where they are.
        names: Path -> what a message calls it.
        root: Folder of the files; ``None`` for a single file.

    """

    paths: list[Path]
    names: dict[str, str]
    root: Path | None = None

    def named(self, text: str) -> str:
        """A message with the names in place of the paths."""
        for path, name in self.names.items():
            text = text.replace(path, name)
        return text


def fingerprint(name: str, option: str) -> Any:
    """Changes whenever the source's files may have changed; of a Hugging Face dataset, its name.

    Args:
        name: Name of the source.
        option: Name of the option, for messages.

    Raises:
        DataError: If there is no such file, or no table in the folder.

    """
    if is_remote(name):
        return [[file.address, file.bytes, file.etag] for file in remote_files(name, option)]
    return [file_fingerprint(path) for path in find_files(name, option)] if is_file_name(name) else name


@contextlib.contextmanager
def local_files(name: str, option: str, folder: Path | None = None) -> Iterator[Files]:
    """The files of a source on this host; copies from S3 are deleted at the end.

    Args:
        name: A file, a folder, or an address in S3.
        option: Name of the option, for messages.
        folder: Folder for the copies. ``None``: the system's for temporary files.

    Raises:
        DataError: As for :func:`fingerprint`, or if S3 cannot be read.

    """
    if not is_remote(name):
        folder_of_files = Path(name).expanduser()
        yield Files(find_files(name, option), {}, folder_of_files if folder_of_files.is_dir() else None)
        return
    files, objects = remote_files(name, option), S3Objects()  # one for all: a client takes half a second to create
    with tempfile.TemporaryDirectory(prefix=".s3-", dir=folder) as copies:
        paths = [
            _copy(objects, file, Path(copies, str(number), *_columns(file, name))) for number, file in enumerate(files)
        ]
        found = Files(paths, {str(path): file.address for path, file in zip(paths, files, strict=True)}, Path(copies))
        try:
            yield found
        except DataError as error:
            raise DataError(found.named(str(error))) from error


@cache  # the settings of prepared data are asked for many times
def remote_files(address: str, option: str) -> tuple[RemoteFile, ...]:
    """The object at an address, or else all tables below it, as this process has found them first.

    Raises:
        DataError: If there is none, or S3 cannot be read.

    """
    try:
        bucket, prefix = split_address(address)
        objects = [RemoteFile(bucket, *found) for found in S3Objects().list_objects(bucket, prefix)]
    except DataReadError as error:
        raise DataError(f"{option}={address!r} was set: {error}") from error
    exact = [file for file in objects if file.key == prefix]
    below = [file for file in objects if not prefix or file.key.startswith(f"{prefix}/")]

    def relative(file: RemoteFile) -> PurePosixPath:
        return PurePosixPath(file.key[len(prefix) :].lstrip("/"))

    tables = [file for file in below if is_table_name(file.key) and not is_hidden(relative(file))]
    found = exact or choose_files(tables, relative, address, option)
    if not found:
        raise DataError(
            f"{option}={address!r} was set, but there is no table."
            f" HINT: give the address of a file, or of a folder with files, that end in {', '.join(SUFFIXES)},"
            f" packed ({', '.join(PACKED)}) or not."
        )
    return tuple(found)


def _columns(file: RemoteFile, address: str) -> list[str]:
    """The folders of a file below an address that hold columns, such as ``label=food``."""
    return [part for part in file.address[len(address) :].split("/")[:-1] if "=" in part and len(part) <= _NAME]


def _copy(objects: S3Objects, file: RemoteFile, folder: Path) -> Path:
    """Copy a file to a folder, under the end of its name, which tells its kind; keys may be longer than file names."""
    folder.mkdir(parents=True)
    path = folder / PurePosixPath(file.key).name[-_NAME:]
    try:
        with path.open("wb") as copy:
            for begin in range(0, file.bytes, _PART):
                copy.write(objects.read(file.bucket, file.key, begin, min(begin + _PART, file.bytes)))
        now = objects.list_objects(file.bucket, file.key)
    except DataReadError as error:
        raise DataError(str(error)) from error
    if (file.key, file.bytes, file.etag) not in now:
        raise DataError(f"{file.address} was changed while it was read. HINT: start again when it is complete.")
    return path
