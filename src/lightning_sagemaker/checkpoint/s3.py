# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in S3, with Amazon's connector: streamed, multipart, with checksums."""

from __future__ import annotations

import functools
import io
import json
import os
import random
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar, cast

import torch
from typing_extensions import override

from lightning_sagemaker._lightning import CheckpointIO, rank_zero_warn
from lightning_sagemaker.checkpoint.atomic_write import CheckpointError
from lightning_sagemaker.checkpoint.find import fits_before, of_other_fits

if TYPE_CHECKING:
    from s3torchconnector._s3client import S3Client

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
        self._client = _make_client(region, endpoint, {"force_path_style": endpoint is not None, **(options or {})})

    @override
    def save_checkpoint(self, checkpoint: Checkpoint, path: PathLike, storage_options: object = None) -> None:
        """Write a checkpoint.

        Raises:
            CheckpointError: If it cannot be written; an existing checkpoint is unchanged.

        """
        bucket, key = split_address(path)

        def write() -> dict[str, int]:
            with self._client.put_object(bucket, key) as stream:
                counted = _Counted(stream)
                torch.save(checkpoint, cast(IO[bytes], counted))
            size = self._client.head_object(bucket, key).size
            if size != counted.size:
                raise OSError(f"received {size} of {counted.size} bytes")
            about = {"step": int(checkpoint.get("global_step", 0)), "fits": fits_before(checkpoint)}
            return {**about, "size": counted.size, "crc32": counted.crc}

        note = self._try(write, f"write {path}")
        self._try(lambda: self._put(bucket, key + _NOTE, json.dumps(note).encode()), f"write {path}{_NOTE}")

    @override
    def load_checkpoint(
        self, path: PathLike, map_location: MapLocation = None, weights_only: bool | None = None
    ) -> Checkpoint:
        """Read a checkpoint; data only, unless ``weights_only`` is False.

        Raises:
            CheckpointError: If the checkpoint does not exist or is corrupt.

        """
        bucket, key = split_address(path)
        content = self._try(lambda: self._get(bucket, key), f"read {path}")
        is_noted = key + _NOTE in self._try(lambda: self._list(bucket, key + _NOTE), f"list {path}{_NOTE}")
        note = self._note(bucket, key, is_noted)
        if note is not None and (len(content), zlib.crc32(content)) != (note["size"], note["crc32"]):
            raise CheckpointError(f"{path} is corrupt: its checksum differs. HINT: use an older one.")
        is_data = True if weights_only is None else weights_only
        found: Checkpoint = torch.load(io.BytesIO(content), map_location=map_location or "cpu", weights_only=is_data)
        return found

    @override
    def remove_checkpoint(self, path: PathLike) -> None:
        """Remove a checkpoint, starting with the object without which it is incomplete."""
        bucket, key = split_address(path)
        parts = self._try(lambda: self._list(bucket, f"{key}/"), f"list {path}")
        for name in (key + _NOTE, *(parts or (key,))):
            self._try(functools.partial(self._client.delete_object, bucket, name), f"remove {path}")

    def put_part(self, path: str, file: Path) -> list[int]:
        """Write one file of a checkpoint with several files, such as a sharded one.

        Args:
            path: URI of the checkpoint.
            file: Local file; its name is kept.

        Returns:
            Size in bytes and checksum of the file.

        """
        bucket, key = split_address(path)

        def write() -> list[int]:
            with file.open("rb") as source, self._client.put_object(bucket, f"{key}/{file.name}") as stream:
                counted = _Counted(stream)
                while block := source.read(_BLOCK):
                    counted.write(block)
            return [counted.size, counted.crc]

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
        size = sum(size for size, _ in parts.values())
        note = {"step": step, "fits": fits, "size": size, "crc32": 0, "parts": parts}
        self._try(lambda: self._put(bucket, key + _NOTE, json.dumps(note).encode()), f"write {path}{_NOTE}")

    def fetch_parts(self, path: str, folder: Path) -> None:
        """Download all files of such a checkpoint into a folder.

        Raises:
            CheckpointError: If the checkpoint is incomplete, or a part is corrupt.

        """
        bucket, key = split_address(path)
        content = self._try(lambda: self._get(bucket, key + _NOTE), f"read {path}{_NOTE}")
        folder.mkdir(parents=True, exist_ok=True)
        for name, (size, crc) in _parts(f"{path}{_NOTE}", content).items():
            content = self._try(functools.partial(self._get, bucket, f"{key}/{name}"), f"read {path}/{name}")
            if (len(content), zlib.crc32(content)) != (size, crc):
                raise CheckpointError(f"{path}/{name} is corrupt: its checksum differs. HINT: use an older one.")
            (folder / Path(name).name).write_bytes(content)

    def names(self, folder: str) -> list[str]:
        """Names of the checkpoints directly in a folder, without folders that share its prefix."""
        bucket, prefix = split_address(folder)
        prefix = f"{prefix.rstrip('/')}/" if prefix else ""
        keys = self._try(lambda: self._list(bucket, prefix), f"list {folder}")
        return sorted({key[len(prefix) :].removesuffix(_NOTE) for key in keys})

    def newest(self, folder: str, report: Callable[[str], None], fits: int | None = None) -> tuple[str, int] | None:
        """URI and steps of the complete checkpoint in a folder with the most steps; None if there is none.

        Args:
            folder: ``s3://bucket/prefix``.
            report: Called with a message for each checkpoint that cannot be used.
            fits: Consider only checkpoints of the fit before which the script had completed this many. None for all.

        """
        bucket, prefix = split_address(folder)
        prefix = f"{prefix.rstrip('/')}/" if prefix else ""
        sizes = self._try(lambda: self._list(bucket, prefix), f"list {folder}")
        found: list[tuple[int, str]] = []
        others = []
        for key in sorted({key.removesuffix(_NOTE) for key in sizes}):
            if not key.endswith(".ckpt"):
                continue
            note = self._note(bucket, key, key + _NOTE in sizes)
            size = sizes.get(key)
            if note is not None and size is None:
                size = sum(self._try(functools.partial(self._list, bucket, f"{key}/"), f"list {key}").values())
            if note is None or note["size"] != size:
                report(f"{SCHEME}{bucket}/{key} is incomplete; skipping it")
            elif fits not in (None, note["fits"]):
                others.append(key.rpartition("/")[2])
            else:
                found.append((note["step"], key))
        if others:
            report(of_other_fits(folder, others))
        return (f"{SCHEME}{bucket}/{max(found)[1]}", max(found)[0]) if found else None

    def _note(self, bucket: str, key: str, exists: bool) -> dict[str, int] | None:
        """The object next to a checkpoint; None if it is missing or foreign. Raises if it cannot be read."""
        if not exists:
            return None
        content = self._try(lambda: self._get(bucket, key + _NOTE), f"read {SCHEME}{bucket}/{key}{_NOTE}")
        try:
            note = json.loads(content)
            return {"fits": int(note.get("fits", 0)), **{name: int(note[name]) for name in ("step", "size", "crc32")}}
        except (ValueError, KeyError, TypeError):
            return None

    def _list(self, bucket: str, prefix: str) -> dict[str, int]:
        pages = self._client.list_objects(bucket, prefix, "/")
        return {info.key: info.size for page in pages for info in page.object_info}

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


class _Stream(Protocol):
    """A stream that an object is written to."""

    def write(self, data: bytes) -> object: ...


class _Counted:
    """A stream that counts its bytes and computes their checksum."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self.size = self.crc = 0

    def write(self, data: bytes | memoryview) -> int:
        content = bytes(data)
        self.size += len(content)
        self.crc = zlib.crc32(content, self.crc)
        self._stream.write(content)
        return len(content)

    def flush(self) -> None:
        pass


def _parts(address: str, content: bytes) -> dict[str, tuple[int, int]]:
    """Size and checksum of each part, from the object next to a checkpoint."""
    try:
        return {name: (int(size), int(crc)) for name, (size, crc) in json.loads(content)["parts"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{address} is not a valid checkpoint index ({type(error).__name__}: {error}). HINT: use an older one."
        ) from error


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


def _make_client(region: str, endpoint: str | None, options: dict[str, Any]) -> S3Client:
    try:
        from s3torchconnector import S3ClientConfig
        from s3torchconnector._s3client import S3Client
    except ImportError as error:
        raise CheckpointError(
            "S3CheckpointIO needs s3torchconnector. HINT: pip install 'lightning-sagemaker[s3]'."
        ) from error
    return S3Client(region, endpoint=endpoint, s3client_config=S3ClientConfig(**options))
