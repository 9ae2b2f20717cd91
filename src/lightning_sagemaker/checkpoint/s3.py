# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in S3, with Amazon's connector: streamed, multipart, with checksums."""

from __future__ import annotations

import functools
import io
import os
import random
import secrets
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar, cast

import torch
from typing_extensions import override

from lightning_sagemaker._lightning import CheckpointIO, rank_zero_warn
from lightning_sagemaker.checkpoint.atomic_write import CheckpointError
from lightning_sagemaker.checkpoint.find import WEIGHTS_ONLY, find_checkpoint, of_other_fits
from lightning_sagemaker.checkpoint.integrity import archive_damage
from lightning_sagemaker.checkpoint.s3_client import Counted, Listed, make_client
from lightning_sagemaker.checkpoint.s3_note import Note, decode, note_of

if TYPE_CHECKING:
    from lightning_sagemaker._types import Checkpoint, MapLocation, PathLike


SCHEME = "s3://"
_NOTE = ".json"
"""Suffix of the object that is written after a checkpoint: without it, the checkpoint is incomplete."""

_BLOCK = 8 * 2**20
"""Bytes per read."""

T = TypeVar("T")


class S3CheckpointIO(CheckpointIO):
    """``Trainer(plugins=S3CheckpointIO())``: checkpoints at ``s3://bucket/key``.

    The checkpoint is uploaded to S3 in parts while it is serialized; an object appears once it is complete, so nothing
    needs to be renamed. A small object next to it, written afterwards, has its number of steps, size and checksum.
    Transient failures are retried, by the connector within a request and by this class for the entire upload.

    Args:
        region: Region of the bucket. Default: ``AWS_REGION`` or ``AWS_DEFAULT_REGION``.
        endpoint: URL of a server other than AWS's. Default: ``AWS_ENDPOINT_URL_S3`` or ``AWS_ENDPOINT_URL``.
        attempts: Number of attempts to write or read.
        pause: Seconds before the second attempt; doubled for each further one.
        options: Options of ``s3torchconnector.S3ClientConfig``, such as ``part_size`` (bytes) or ``force_path_style``.

    Raises:
        CheckpointError: If s3torchconnector is not installed, or no region is known.

    """

    def __init__(
        self,
        region: str | None = None,
        endpoint: str | None = None,
        attempts: int = 4,
        pause: float = 0.5,
        options: dict[str, object] | None = None,
    ) -> None:
        region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if region is None:
            raise CheckpointError("S3CheckpointIO needs the region of the bucket. HINT: set region, or AWS_REGION.")
        self._attempts, self._pause = attempts, pause
        # Other servers rarely support bucket names as host names.
        self._client = make_client(region, endpoint, {"force_path_style": endpoint is not None, **(options or {})})

    @override
    def save_checkpoint(self, checkpoint: Checkpoint, path: PathLike, storage_options: object = None) -> None:
        """Write a checkpoint.

        Raises:
            CheckpointError: If it cannot be written; an existing checkpoint is unchanged.

        """
        bucket, key = split_address(path)

        def write() -> Note:
            with self._client.put_object(bucket, key) as stream:
                counted = Counted(stream)
                torch.save(checkpoint, cast(IO[bytes], counted))
            head = self._client.head_object(bucket, key)
            if head.size != counted.size:
                raise OSError(f"received {head.size} of {counted.size} bytes")
            return note_of(checkpoint, counted.size, counted.crc, head.etag)

        note = self._try(write, f"write {path}")
        self._try(lambda: self._put(bucket, key + _NOTE, note.encode()), f"write {path}{_NOTE}")

    @override
    def load_checkpoint(
        self, path: PathLike, map_location: MapLocation = None, weights_only: bool | None = None
    ) -> Checkpoint:
        """Read a checkpoint; data only, unless ``weights_only`` is False.

        Raises:
            CheckpointError: If the checkpoint does not exist or is corrupt.

        """
        bucket, key = split_address(path)
        is_noted = key + _NOTE in self._try(lambda: self._list(bucket, key + _NOTE), f"list {path}{_NOTE}")
        note = self._note(bucket, key, is_noted)

        def read() -> bytes:
            content = self._get(bucket, key)
            # A writer that was killed, or a second one, leaves an object that is intact next to the note of another.
            if note is None or note.describes(content) or archive_damage(io.BytesIO(content)) is None:
                return content
            raise CheckpointError(f"{path} is corrupt: its checksum differs. HINT: use an older one.")

        content = self._try(read, f"read {path}")
        is_data = True if weights_only is None else weights_only
        found: Checkpoint = torch.load(io.BytesIO(content), map_location=map_location or "cpu", weights_only=is_data)
        return found

    @override
    def remove_checkpoint(self, path: PathLike) -> None:
        """Remove a checkpoint, starting with the object without which it is incomplete."""
        bucket, key = split_address(path)
        parts = self._try(lambda: self._list(bucket, f"{key}/", ""), f"list {path}")
        for name in (key + _NOTE, key, *parts):
            self._try(functools.partial(self._client.delete_object, bucket, name), f"remove {path}")

    def put_part(self, path: str, file: Path) -> list[int]:
        """Write one file of a checkpoint with several files, such as a sharded one.

        It does not replace the file of an earlier checkpoint with the same URI, which is complete until
        :meth:`finish_parts`.

        Args:
            path: URI of the checkpoint.
            file: Local file; its name is kept.

        Returns:
            Size in bytes and checksum of the file, and the number of the folder that it is in.

        """
        bucket, key = split_address(path)
        number = secrets.randbits(48)  # of the system: scripts seed all processes alike

        def write() -> list[int]:
            with file.open("rb") as source, self._client.put_object(bucket, f"{key}/{number}/{file.name}") as stream:
                counted = Counted(stream)
                while block := source.read(_BLOCK):
                    counted.write(block)
            return [counted.size, counted.crc, number]

        return self._try(write, f"write {path}/{file.name}")

    def finish_parts(self, path: str, step: int, parts: dict[str, list[int]], fits: int = 0) -> None:
        """Mark a checkpoint as complete.

        Args:
            path: URI of the checkpoint.
            step: Optimizer steps of the run.
            parts: Name -> result of :meth:`put_part`, of all processes.
            fits: Fits that the script had completed before.

        """
        bucket, key = split_address(path)
        noted = key + _NOTE in self._try(lambda: self._list(bucket, key + _NOTE), f"list {path}{_NOTE}")
        before = self._note(bucket, key, noted)
        note = Note(step, sum(facts[0] for facts in parts.values()), 0, fits, parts=parts)
        self._try(lambda: self._put(bucket, key + _NOTE, note.encode()), f"write {path}{_NOTE}")
        old = {name for name, *_ in before.keys(key).values()} if before is not None else set()
        for name in sorted(old - {name for name, *_ in note.keys(key).values()}):
            self._try(functools.partial(self._client.delete_object, bucket, name), f"remove {path}")

    def fetch_parts(self, path: str, folder: Path) -> None:
        """Download all files of such a checkpoint into a folder.

        Raises:
            CheckpointError: If the checkpoint is incomplete, or a part is corrupt.

        """
        bucket, key = split_address(path)
        content = self._try(lambda: self._get(bucket, key + _NOTE), f"read {path}{_NOTE}")
        try:
            note = decode(content)
            if note.parts is None:
                raise ValueError("it lists no parts")
        except ValueError as error:
            raise CheckpointError(
                f"{path}{_NOTE} is not a valid checkpoint index ({error}). HINT: use an older one."
            ) from error
        folder.mkdir(parents=True, exist_ok=True)

        def read(name: str, part: str, facts: tuple[int, int]) -> bytes:
            content = self._get(bucket, part)
            if (len(content), zlib.crc32(content)) != facts:
                raise CheckpointError(f"{path}/{name} is corrupt: its checksum differs. HINT: use an older one.")
            return content

        for name, (part, size, crc) in note.keys(key).items():
            content = self._try(functools.partial(read, name, part, (size, crc)), f"read {path}/{name}")
            (folder / Path(name).name).write_bytes(content)

    def names(self, folder: str) -> list[str]:
        """Names of the checkpoints directly in a folder, without folders that share its prefix."""
        bucket, prefix = split_address(folder)
        prefix = f"{prefix.rstrip('/')}/" if prefix else ""
        keys = self._try(lambda: self._list(bucket, prefix), f"list {folder}")
        return sorted({key[len(prefix) :].removesuffix(_NOTE) for key in keys})

    def newest(
        self, folder: str, report: Callable[[str], None], fits: int | None = None, weights_only: bool = True
    ) -> tuple[str, int] | None:
        """URI and steps of the complete checkpoint in a folder with the most steps; None if there is none.

        Args:
            folder: ``s3://bucket/prefix``.
            report: Called with a message for each checkpoint that cannot be used.
            fits: Consider only checkpoints of the fit before which the script had completed this many. None for all.
            weights_only: Load data only, where a checkpoint has to be read. ``False`` allows it to run code.

        """
        bucket, prefix = split_address(folder)
        prefix = f"{prefix.rstrip('/')}/" if prefix else ""
        objects = self._try(lambda: self._list(bucket, prefix), f"list {folder}")
        found: list[tuple[int, bool, str]] = []
        others = []
        for key in sorted({key.removesuffix(_NOTE) for key in objects}):
            if not key.endswith(".ckpt"):
                continue
            note = self._usable(bucket, key, objects, report, weights_only)
            if note is not None and fits not in (None, note.fits):
                others.append(key.rpartition("/")[2])
            elif note is not None:
                found.append((note.step, note.exact, key))
        if others:
            report(of_other_fits(folder, others))
        return (f"{SCHEME}{bucket}/{max(found)[2]}", max(found)[0]) if found else None

    def _usable(
        self, bucket: str, key: str, objects: Mapping[str, Listed], report: Callable[[str], None], data: bool
    ) -> Note | None:
        """The note of a complete checkpoint from which a run can resume; None, and a message, for any other."""
        address, there = f"{SCHEME}{bucket}/{key}", objects.get(key)
        note = self._note(bucket, key, key + _NOTE in objects)
        if note is not None and note.parts is not None:
            parts = self._try(lambda: self._list(bucket, f"{key}/", ""), f"list {address}")
            is_whole = all(name in parts and parts[name].size == size for name, size, _ in note.keys(key).values())
        elif note is not None and there is not None:
            is_whole = True
            if there.size != note.size or note.etag not in ("", there.etag):  # replaced, without its note
                return self._inspected(bucket, key, report, data)
        else:
            is_whole = False
        if note is None or not is_whole or note.weights:
            report(f"{address} is incomplete; skipping it" + (f" ({WEIGHTS_ONLY})" if note and note.weights else ""))
            return None
        return note

    def _inspected(self, bucket: str, key: str, report: Callable[[str], None], data: bool) -> Note | None:
        """As :meth:`_usable`, from the checkpoint itself."""
        address = f"{SCHEME}{bucket}/{key}"
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "copy.ckpt")
            copy.write_bytes(self._try(lambda: self._get(bucket, key), f"read {address}"))
            try:
                found = find_checkpoint(folder, lambda text: report(text.replace(str(copy), address)), data)
            except CheckpointError as error:
                raise CheckpointError(str(error).replace(str(copy), address)) from error
        return None if found is None else Note(found.step, 0, 0, found.fits, exact=found.exact)

    def _note(self, bucket: str, key: str, exists: bool) -> Note | None:
        """The object next to a checkpoint; None if it is missing or foreign. Raises if it cannot be read."""
        if not exists:
            return None
        content = self._try(lambda: self._get(bucket, key + _NOTE), f"read {SCHEME}{bucket}/{key}{_NOTE}")
        try:
            return decode(content)
        except ValueError:
            return None

    def _list(self, bucket: str, prefix: str, delimiter: str = "/") -> dict[str, Listed]:
        pages = self._client.list_objects(bucket, prefix, delimiter)
        return {info.key: info for page in pages for info in page.object_info}

    def _get(self, bucket: str, key: str) -> bytes:
        return self._client.get_object(bucket, key).read()

    def _put(self, bucket: str, key: str, content: bytes) -> None:
        with self._client.put_object(bucket, key) as stream:
            stream.write(content)

    def _try(self, action: Callable[[], T], what: str) -> T:
        for attempt in range(1, self._attempts + 1):
            try:
                return action()
            except Exception as error:
                if attempt == self._attempts and isinstance(error, CheckpointError):
                    raise
                if attempt == self._attempts:
                    raise CheckpointError(
                        f"could not {what} in {attempt} attempts ({type(error).__name__}: {error}). HINT: check the bucket's"
                        " name and region and the role's permissions (s3:GetObject, s3:PutObject, s3:ListBucket,"
                        " s3:DeleteObject)."
                    ) from error
                wait = self._pause * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)
                rank_zero_warn(f"Attempt {attempt} to {what} failed ({error}); the next in {wait:.1f} s.")
                time.sleep(wait)
        raise AssertionError("unreachable")


def split_address(path: PathLike) -> tuple[str, str]:
    """Split an address into bucket and key.

    Raises:
        CheckpointError: If ``path`` is not an S3 address.

    """
    text = str(path)
    bucket, _, key = text.removeprefix(SCHEME).partition("/")
    if not text.startswith(SCHEME) or not bucket:
        raise CheckpointError(
            f"{text!r} is not an S3 address. HINT: write s3://bucket/key, as a string and not as a Path."
        )
    return bucket, key
