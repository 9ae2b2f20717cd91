# SPDX-License-Identifier: Apache-2.0
"""From S3 to this disk."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning_sagemaker.launch.aws import sentences
from lightning_sagemaker.launch.errors import LaunchError


def fetch(s3: Any, uri: str, folder: Path, limit: int | None = None) -> int:
    """Copy what an ``s3://`` address means, an object or all below a prefix, into ``folder``; return the number of files.

    Args:
        s3: A boto3 client.
        uri: The address.
        folder: Made if it is not there.
        limit: Stop after so many bytes; None copies everything.

    """
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    folder.mkdir(parents=True, exist_ok=True)
    count = total = 0
    with sentences(f"Getting {uri}"):
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key):
            for item in page.get("Contents", []):
                name, below = item["Key"], key.rstrip("/") + "/" if key else ""
                if name.endswith("/") or (name != key and not name.startswith(below)):
                    continue  # a folder's own entry, or a neighbour whose name begins alike
                if limit is not None and count and total + item["Size"] > limit:
                    return count
                target = (folder / (name[len(below) :] if name != key else os.path.basename(name))).resolve()
                if not target.is_relative_to(folder.resolve()):
                    raise LaunchError(f"{uri} holds {name!r}, which leads out of its folder. HINT: do not trust it.")
                target.parent.mkdir(parents=True, exist_ok=True)
                s3.download_file(bucket, name, str(target))
                count, total = count + 1, total + item["Size"]
    return count


def fetch_object(s3: Any, uri: str, target: Path) -> bool:
    """Copy one object to ``target``; False if there is none."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    from botocore.exceptions import ClientError

    try:
        s3.download_file(bucket, key, str(target))
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") in ("404", "NoSuchKey", "NoSuchBucket"):
            return False
        with sentences(f"Getting {uri}"):
            raise
    return True


def unpack(archive: Path, target: Path) -> None:
    """Unpack a ``tar.gz`` into a new folder.

    Raises:
        LaunchError: If it cannot be read, or has names that lead out of the folder.

    """
    target.mkdir()
    try:
        with tarfile.open(archive) as packed:
            if hasattr(tarfile, "data_filter"):
                packed.extractall(target, filter="data")  # refuses names and links that lead out, and devices
            else:  # before Python 3.10.12 and 3.11.4, such as that of Debian 12
                packed.extractall(target, members=_harmless(packed, target))
    except (tarfile.TarError, OSError) as error:
        raise LaunchError(f"{archive.name} cannot be unpacked: {error}. HINT: look at it with `tar -tzf`.") from error


def _harmless(packed: tarfile.TarFile, target: Path) -> Iterator[tarfile.TarInfo]:
    """The files and folders of an archive; anything else in it is an error, and so is a name that leads out."""
    for member in packed:
        inside = (target / member.name).resolve().is_relative_to(target.resolve())
        if not inside or not (member.isfile() or member.isdir()):
            raise tarfile.ExtractError(f"{member.name!r} leads out of its folder, or is neither a file nor a folder")
        yield member


def replace_folder(new: Path, place: Path) -> Path:
    """Rename ``new`` to ``place``, in place of what is there; return ``place``."""
    if place.exists():
        shutil.rmtree(place)
    return new.rename(place)
