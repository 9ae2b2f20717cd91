# SPDX-License-Identifier: Apache-2.0
"""Prepared data in S3: its upload, and its small files, which are copied to the host; shards are streamed."""

from __future__ import annotations

import json
import platform
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from lightning_sagemaker.data.block_index import INDEX, SplitIndex, read_index
from lightning_sagemaker.data.damage import DamagedDataError, DataReadError
from lightning_sagemaker.data.s3_errors import MissingError
from lightning_sagemaker.data.s3_objects import SCHEME, S3Objects, split_address
from lightning_sagemaker.recipes._common.data.cache import MANIFEST, all_files, settings_key
from lightning_sagemaker.recipes._common.data.checksums import FAST, checksum_of, compare, find_fault
from lightning_sagemaker.text_files import write_text

_PART = 8 << 20
"""Bytes that are read at a time to compare a file."""
_EVERY = 2.0
"""Seconds between checks for finished shards."""


class RemoteFolder:
    """A folder in S3.

    Args:
        address: ``s3://bucket/prefix``.
        objects: Client that reads and writes; ``None``: a new one.

    """

    holds_no_order = True

    def __init__(self, address: str, objects: S3Objects | None = None) -> None:
        self.address = address.rstrip("/")
        self.objects = objects or S3Objects()
        self._bucket, self._prefix = split_address(self.address)

    def local(self, cache: Path) -> Path:
        """Folder for the copies of small files; one per host, as hosts may share a disk."""
        return cache / f"s3-{settings_key({'address': self.address, 'host': platform.node()})}"

    def manifest(self) -> dict[str, Any] | None:
        """Manifest of the data; ``None`` if there is none.

        Raises:
            DataReadError: If it is damaged or cannot be read.

        """
        try:
            found: dict[str, Any] = json.loads(self._read(MANIFEST))
            all_files(found)
        except MissingError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, DataReadError):
                raise
            raise DataReadError(f"{self.address}/{MANIFEST} is damaged ({error}). HINT: copy it again.") from error
        return found

    def copy_small(self, folder: Path) -> dict[str, Any]:
        """Copy all files but the shards to ``folder``, verified by their checksums, the manifest last; returns it.

        Raises:
            DataReadError: If a file is missing or damaged, or the data was prepared without an index of blocks.

        """
        manifest = self.manifest()
        if manifest is None:
            raise DataReadError(
                f"{self.address} was given, but holds no {MANIFEST}. HINT: give the address that `lightning-sagemaker"
                " prepare RECIPE INPUT s3://bucket/prefix` has written to, or to which its folder was copied."
            )
        others: Mapping[str, dict[str, Any]] = manifest.get("others", {})
        if INDEX not in others:
            raise DataReadError(
                f"{self.address} was prepared without {INDEX}, the index of its blocks. HINT: run the same"
                " `lightning-sagemaker prepare` again on the folder that it was copied from, and copy that file and"
                f" {MANIFEST}."
            )
        for name, entry in others.items():
            self._copy(folder, name, entry)
        write_text(folder / MANIFEST, json.dumps(manifest))
        return manifest

    def read_index(self, folder: Path) -> dict[str, SplitIndex]:
        """Split -> index of its blocks, from the copy in ``folder``."""
        return read_index((folder / INDEX).read_text())

    def send(self, folder: Path, name: str, entry: Mapping[str, Any]) -> bool:
        """Upload a file unless it is in S3 with the same checksum; returns whether it was uploaded."""
        checksum = str(entry[FAST])
        if self.objects.checksum(self._bucket, self._key(name)) == (entry["bytes"], checksum):
            return False
        self.objects.upload(folder / name, self._bucket, self._key(name), checksum)
        return True

    def send_text(self, name: str, file: Path) -> None:
        """Upload a small file, overwriting an existing one."""
        self.objects.upload(file, self._bucket, self._key(name), f"{zlib.crc32(file.read_bytes()):08x}")

    def find_change(self, name: str, entry: Mapping[str, Any]) -> str | None:
        """Message if a file has changed, from reading all of it, else ``None``, also if the manifest has no checksum.

        Raises:
            DataReadError: If the file cannot be read now.

        """
        sizes, key = range(0, entry["bytes"], _PART), self._key(name)

        def read(kind: str) -> str:
            ends = (min(begin + _PART, entry["bytes"]) for begin in sizes)
            return checksum_of(
                (self.objects.read(self._bucket, key, *span) for span in zip(sizes, ends, strict=True)), kind
            )

        try:
            found = self.objects.checksum(self._bucket, key)
            if found is None:
                return f"{name} is missing"
            if found[0] != entry["bytes"]:
                return f"{name} has {found[0]} bytes, expected {entry['bytes']}"
            return compare(name, entry, read)
        except DamagedDataError as error:  # changed meanwhile
            return str(error).split(" HINT:")[0]

    def _copy(self, folder: Path, name: str, entry: Mapping[str, Any]) -> None:
        if ".." in PurePosixPath(name).parts or name.startswith("/"):
            raise DataReadError(f"{self.address}/{MANIFEST} names {name!r}. HINT: use one that `prepare` has written.")
        if find_fault(folder, name, entry) is None:
            return
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{threading.get_native_id()}")
        temporary.write_bytes(self._read(name))
        temporary.replace(path)
        if fault := find_fault(folder, name, entry):
            raise DataReadError(f"{fault}, in {self.address}. HINT: copy it again from its source.")

    def _read(self, name: str) -> bytes:
        return self.objects.read(self._bucket, self._key(name))

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name


class Upload:
    """Context manager that uploads finished shards to S3 while others are made.

    Args:
        folder: Folder in which the shards are made.
        remote: Folder in S3 to write to.
        finished: Returns name -> manifest entry of each finished file.
        say: Called with each line to print.

    """

    def __init__(
        self,
        folder: Path,
        remote: RemoteFolder,
        finished: Callable[[], Mapping[str, Any]],
        say: Callable[[str], None],
    ) -> None:
        self._folder, self._remote, self._finished, self._say = folder, remote, finished, say
        self._sent: set[str] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="upload", daemon=True)

    def __enter__(self) -> Upload:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def finish(self, manifest: Mapping[str, Any]) -> None:
        """Upload all remaining files, the manifest last: data without a manifest is not used."""
        self._end.set()
        self._thread.join()
        entries = all_files(manifest)
        with ThreadPoolExecutor(8) as pool:
            sent = list(pool.map(lambda name: self._send(name, entries[name]), entries))
        self._remote.send_text(MANIFEST, self._folder / MANIFEST)
        self._say(f"{sum(sent) + len(self._sent)} files written to {self._remote.address}, of {len(entries)}")

    def _send(self, name: str, entry: Mapping[str, Any]) -> bool:
        return name not in self._sent and self._remote.send(self._folder, name, entry)

    def _work(self) -> None:
        while not self._end.wait(_EVERY):
            for name, entry in self._finished().items():
                if name in self._sent or self._end.is_set():
                    continue
                try:
                    self._remote.send(self._folder, name, entry)
                except DataReadError as error:  # what is left is tried again at the end
                    self._say(f"not written yet: {error}")
                    return
                self._sent.add(name)


def is_remote(name: object) -> bool:
    """Whether a name is an address in S3."""
    return isinstance(name, str) and name.startswith(SCHEME)


def columns_of(files: Iterable[str], second: str) -> dict[str, list[list[str]]]:
    """Split -> columns -> file names: ``SPLIT-NUMBER.npy``, and in a second column ``SPLIT-NUMBER{second}.npy``."""
    found: dict[str, list[list[str]]] = {}
    for name in sorted(files):
        columns = found.setdefault(name.split("-")[0], [[], []])
        columns[second in name].append(name)
    return {split: [names for names in columns if names] for split, columns in found.items()}
