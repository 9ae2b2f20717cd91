# SPDX-License-Identifier: Apache-2.0
"""Download from S3, and unpack archives safely."""

from __future__ import annotations

import json
import logging
import os
import posixpath
import shutil
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from lightning_sagemaker.aws_types import Client
from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.aws import translate_aws_errors
from lightning_sagemaker.launch.spec.carried import Json

MARK = ".lightning-sagemaker"
"""Name of a file that marks a downloaded folder, which a later download may replace."""

LINES = (".txt", ".csv", ".tsv", ".jsonl")
"""Suffixes of files of which a sample may be cut at a line."""

_log = logging.getLogger(__name__)

_SHOWN = 100
"""Maximum characters of a name in a message."""


def split_uri(uri: str) -> tuple[str, str]:
    """Bucket and key of an ``s3://`` URI."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def fetch(
    s3: Client, uri: str, folder: Path, limit: int | None = None, least: int = 1, is_channel: bool = False
) -> int:
    """Download an object, or all objects below a prefix, into ``folder``; return the number of files.

    Args:
        s3: A boto3 client of ``s3``.
        uri: ``s3://`` URI of the object or prefix.
        folder: Target folder, which is created if it does not exist.
        limit: For a sample of the data: of each longer text, the first so many bytes, up to a line; of other objects,
            as many as this in total. None for no limit.
        least: Number of objects that a sample has in any case.
        is_channel: Whether objects whose names only begin with the prefix's last part are downloaded too, as SageMaker
            does for a channel: of ``s3://bucket/data/train``, ``data/train-1.csv`` as ``train-1.csv``.

    Raises:
        LaunchError: If AWS rejects a request, or an object's name leads out of ``folder``.

    """
    bucket, key = split_uri(uri)
    folder.mkdir(parents=True, exist_ok=True)
    count = total = 0
    with translate_aws_errors(f"Getting {uri}"):
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key):
            for item in page.get("Contents", []):
                name, below = item["Key"], key.rstrip("/") + "/" if key else ""
                if name == key or (is_channel and not name.startswith(below)):
                    below = key[: key.rfind("/") + 1]
                if name.endswith("/") or not name.startswith(below):
                    continue  # a folder's own entry, or a sibling with the same prefix
                cut = limit is not None and item["Size"] > limit and PurePosixPath(name).suffix in LINES
                if limit is not None and count >= least and not cut and total + item["Size"] > limit:
                    return count
                target = (folder / name[len(below) :]).resolve()
                if not target.is_relative_to(folder.resolve()):
                    raise LaunchError(f"{uri} holds {name!r}, which points outside its folder. HINT: do not trust it.")
                try:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    if limit is not None and cut:
                        part = s3.get_object(Bucket=bucket, Key=name, Range=f"bytes=0-{limit - 1}")["Body"].read()
                        target.write_bytes(up_to_last_line(part))
                    else:
                        s3.download_file(bucket, name, str(target))
                except OSError as error:  # such as of a full disk, or of keys that are a file and a folder of one name
                    raise LaunchError(
                        f"{uri} holds {name[:_SHOWN]!r}, which cannot be written here ({error.strerror or error}). HINT:"
                        " check the disk; a file and a folder cannot have one name, nor a name more than 255 bytes."
                    ) from error
                count, total = count + 1, total + target.stat().st_size
    return count


def fetch_listed(s3: Client, uri: str, folder: Path, limit: int | None = None, least: int = 1) -> int:
    """Download the objects that a manifest lists, each to its place below the manifest's prefix.

    Args:
        s3: A boto3 client of ``s3``.
        uri: ``s3://`` URI of the manifest, ``[{"prefix": "s3://bucket/below/"}, "a.csv", "more/b.csv", ...]``.
        folder: Target folder, which is created if it does not exist.
        limit: As in :func:`fetch`.
        least: As in :func:`fetch`.

    Raises:
        LaunchError: If it is no such manifest, or as in :func:`fetch`.

    """
    bucket, key = split_uri(uri)
    with translate_aws_errors(f"Getting {uri}"):
        text = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    try:
        first, *names = json.loads(text)
        prefix = first["prefix"]
        places = {name: prefix + name for name in names}
    except (ValueError, TypeError, KeyError) as error:
        raise LaunchError(
            f'{uri} is not a manifest ({error}). HINT: write [{{"prefix": "s3://bucket/below/"}}, "a.csv", "b.csv"].'
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    count = total = 0
    for name, place in places.items():
        if limit is not None and count >= least and total >= limit:
            break
        inside = (folder / name).resolve().parent
        if not inside.is_relative_to(folder.resolve()):
            raise LaunchError(f"{uri} lists {name!r}, which points outside its folder. HINT: do not trust it.")
        count += fetch(s3, place, inside, limit)
        total += (folder / name).stat().st_size if (folder / name).is_file() else 0
    return count


def sent_config(s3: Client, job: Json) -> Json:
    """``distributed.json`` that was sent with a job; empty if it has none, or none that may be read.

    Args:
        s3: A boto3 client of ``s3``.
        job: The answer of DescribeTrainingJob.

    """
    from botocore.exceptions import BotoCoreError, ClientError

    sources = {one["ChannelName"]: one["DataSource"].get("S3DataSource") for one in job.get("InputDataConfig", [])}
    drivers = sources.get("sm_drivers")
    if not drivers:
        return {}
    bucket, key = split_uri(drivers["S3Uri"])
    try:
        text = s3.get_object(Bucket=bucket, Key=f"{key.rstrip('/')}/distributed.json")["Body"].read()
        return dict(json.loads(text))
    except (BotoCoreError, ClientError, ValueError) as error:
        _log.warning("%s: distribution and encoded hyperparameters cannot be read: %s", drivers["S3Uri"], error)
        return {}


def up_to_last_line(text: bytes) -> bytes:
    """The complete lines of a text that was cut; all of it if it has only one."""
    return text[: text.rfind(b"\n") + 1] or text


def fetch_object(s3: Client, uri: str, target: Path) -> bool:
    """Download one object to ``target``; return False if it does not exist."""
    from botocore.exceptions import ClientError

    bucket, key = split_uri(uri)
    try:
        s3.download_file(bucket, key, str(target))
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") in ("404", "NoSuchKey", "NoSuchBucket"):
            return False
        with translate_aws_errors(f"Getting {uri}"):
            raise
    return True


def fetch_packed(s3: Client, uri: str, target: Path) -> bool:
    """Download an archive and unpack it into the new folder ``target``; return False if it does not exist."""
    archive = target.with_name("archive.tar.gz")
    if not fetch_object(s3, uri, archive):
        return False
    unpack(archive, target)
    return True


def unpack(archive: Path, target: Path) -> None:
    """Unpack the folders and files of a ``tar.gz`` into a new folder.

    No links are created: a link to a file of the archive becomes a copy of the file, any other is an error. Links have
    bypassed the filters of ``tarfile`` (CVE-2025-4517 and similar), and older versions of Python have no filters.

    Raises:
        LaunchError: If the archive is damaged, or has a device, or a name or link that points outside.

    """
    target.mkdir()
    try:
        with tarfile.open(archive, "r:gz") as packed:
            members = {_inside(member.name): member for member in packed.getmembers()}
            for name in members:
                _write(packed, _followed(name, members), target.joinpath(*name))
            while packed.fileobj is not None and packed.fileobj.read(2**20):
                pass  # reads to the checksum at the end
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise LaunchError(
            f"{archive.name} cannot be unpacked: {_short(error)}. HINT: it may be truncated; inspect it with `tar -tzf`."
        ) from error


def _inside(name: str) -> tuple[str, ...]:
    """The components of a name; raise ExtractError if it leads out of the archive."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise tarfile.ExtractError(f"{name[:_SHOWN]!r} points outside it")
    return path.parts


def _followed(name: tuple[str, ...], members: Mapping[tuple[str, ...], tarfile.TarInfo]) -> tarfile.TarInfo:
    """The folder or file that a member is, or the file that its links lead to."""
    first = member = members[name]
    for _ in range(len(members)):
        if member.isfile() or (member.isdir() and member is first):
            return member
        if not (member.issym() or member.islnk()):
            break
        base = "" if member.islnk() else posixpath.dirname(member.name)
        place = posixpath.normpath(posixpath.join(base, member.linkname))
        found = members.get(PurePosixPath(place).parts)
        if found is None or found is member:  # no member has a name outside of the archive
            break
        member = found
    what = (
        f"a link to {first.linkname[:_SHOWN]!r}, not a file in it" if first.linkname else "neither a file nor a folder"
    )
    raise tarfile.ExtractError(f"{first.name[:_SHOWN]!r} is {what}")


def _write(packed: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    if member.isdir():
        place.mkdir(parents=True, exist_ok=True)
        return
    content = packed.extractfile(member)
    assert content is not None
    place.parent.mkdir(parents=True, exist_ok=True)
    with content, place.open("wb") as file:
        shutil.copyfileobj(content, file)
    place.chmod(0o755 if member.mode & 0o100 else 0o644)


def _short(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:200]


def put_in_place(new: Path, place: Path) -> Path:
    """Rename ``new`` to ``place``, and replace an earlier download there; return ``place``.

    Raises:
        LaunchError: If something else is at ``place``.

    """
    check_replaceable(place)
    old = place.with_name(f".{place.name}.old.{os.getpid()}")
    if place.exists():
        place.rename(old)
    (new / MARK).write_text("Downloaded by lightning-sagemaker, which may replace this folder.\n")
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)
    return place


def check_replaceable(place: Path) -> None:
    """Check that ``place`` does not exist, is an empty folder, or is an earlier download.

    Raises:
        LaunchError: If it is anything else.

    """
    is_ours = place.is_dir() and not place.is_symlink() and ((place / MARK).is_file() or not any(place.iterdir()))
    if os.path.lexists(place) and not is_ours:
        raise LaunchError(
            f"{str(place)!r} exists and was not made by a download, so it is not replaced. HINT: give another folder."
        )
