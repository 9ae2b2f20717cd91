# SPDX-License-Identifier: Apache-2.0
"""The source of a job as one reproducible archive: program, requirements and this package's wheel."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lightning_sagemaker.aws_types import Client, Session
from lightning_sagemaker.errors import LaunchError, suggestion
from lightning_sagemaker.launch.aws import make_client, translate_aws_errors
from lightning_sagemaker.launch.source.file_kinds import text_of
from lightning_sagemaker.launch.source.git_clone import REPOSITORY, clone
from lightning_sagemaker.launch.source.requirements import REQUIREMENTS, check_requirements
from lightning_sagemaker.launch.source.secret_scan import can_scan, check_secrets
from lightning_sagemaker.launch.source.source_files import Selection, select_files, why_not
from lightning_sagemaker.launch.source.vendored import FOLDER, Target, vendored_wheels
from lightning_sagemaker.launch.source.wheel import make_wheel
from lightning_sagemaker.launch.spec.config import JobConfig
from lightning_sagemaker.launch.spec.inputs import is_there
from lightning_sagemaker.launch.transfer import fetch_object, unpack

MAX_BYTES = 200 * 2**20
"""Maximum size of all files together; anything larger is data, which belongs in a channel."""


@dataclass(frozen=True)
class Bundle:
    """A source archive.

    Attributes:
        content: The archive, a ``tar.gz``.
        entry_script: Path of the entry script in the archive.
        digest: SHA-256 of ``content``, hexadecimal.
        files: Names of the files in the archive.
        left_out: Name of a file or folder that is not sent -> reason.
        is_scanned: Whether text files were scanned for secrets; also True for a recipe, which needs no scan.

    """

    content: bytes
    entry_script: str
    digest: str
    files: tuple[str, ...]
    left_out: Mapping[str, str]
    is_scanned: bool

    @property
    def name(self) -> str:
        """File name, with the beginning of the digest."""
        return f"source-{self.digest[:16]}.tar.gz"

    def write(self, folder: Path) -> Path:
        """Write the archive into ``folder``; return its path."""
        path = folder / self.name
        path.write_bytes(self.content)
        return path


def make_bundle(
    config: JobConfig, include_plugin: bool, target: Target | None = None, session: Session | None = None
) -> Bundle:
    """Collect the source of a job.

    Args:
        config: A job with ``recipe`` or ``entry_point``.
        include_plugin: Whether to include this package's wheel.
        target: Platform for which to include the wheels of ``requirements.txt``; None if the container can fetch them.
        session: A boto3 session that may read a source in S3; created when None.

    Raises:
        LaunchError: If there is no such recipe, folder or script; the script is outside its folder; the files are too
            large or hold secrets; or the requirements would replace the image's torch.

    """
    with tempfile.TemporaryDirectory() as scratch:
        source, entry = _source(config, Path(scratch), session)
        is_cloned = config.recipe is None and config.git_config is not None
        chosen = _select(config, source, entry, Path(scratch, REPOSITORY) if is_cloned else Path())
        taken = chosen.taken
        size = sum(path.stat().st_size for path in taken.values())
        if size > MAX_BYTES:
            largest = max(taken, key=lambda name: taken[name].stat().st_size)
            raise LaunchError(
                f"The source holds {size / 2**20:.0f} MiB, {MAX_BYTES // 2**20} at most can be sent; the largest file is"
                f" {largest}. HINT: pass data as an input channel."
            )
        contents = {name: path.read_bytes() for name, path in taken.items()}
    check_requirements(contents)
    if config.recipe is None:
        check_secrets(contents, config.send_anyway)
    if include_plugin:
        wheel, content = make_wheel()
        adapts = any(name.startswith("model.lora") for name in config.hyperparameters)
        extra_name = f"[recipes{',lora' if adapts else ''}]" if config.recipe else ""
        contents[wheel] = content
        own = text_of(contents.get(REQUIREMENTS, b""))
        contents[REQUIREMENTS] = f"./{wheel}{extra_name}\n{own}".encode()
    if target is not None and REQUIREMENTS in contents:
        contents |= _vendored(contents, target)
    archive = _archive(contents)
    digest = hashlib.sha256(archive).hexdigest()
    left_out, is_scanned = dict(sorted(chosen.left_out.items())), config.recipe is not None or can_scan()
    return Bundle(archive, entry, digest, tuple(sorted(contents)), left_out, is_scanned)


def _vendored(contents: Mapping[str, bytes], target: Target) -> dict[str, bytes]:
    wheels = vendored_wheels(contents, target)
    size = sum(map(len, wheels.values()))
    if size > MAX_BYTES:
        raise LaunchError(
            f"The wheels of requirements.txt for a container without network hold {size / 2**20:.0f} MiB,"
            f" {MAX_BYTES // 2**20} MiB at most can be sent. HINT: use an image_uri that contains them."
        )
    return {f"{FOLDER}/{name}": content for name, content in wheels.items()}


def _select(config: JobConfig, source: Path, entry: str, root: Path) -> Selection:
    """The files of the source folder and of ``dependencies``, which are relative to ``root``."""
    is_alone = config.recipe is None and not config.source_dir and config.git_config is None
    sent, is_recipe = config.send_anyway, config.recipe is not None
    chosen = Selection({entry: source / entry}) if is_alone else select_files(source, [*sent, entry], is_recipe)
    for extra in config.dependencies:
        path = root / extra
        if not is_there(str(path)):
            place = "in the repository" if root.parts else "on this machine"
            raise LaunchError(f"dependencies has {extra!r}, which is not {place}. HINT: give existing paths.")
        if path.is_dir():
            last = os.path.basename(os.fspath(extra))  # as in SDK 2: what is in `lib/`, or the folder `lib`
            if last == "..":
                raise LaunchError(
                    f"dependencies has {extra!r}, whose place in the source is not clear. HINT: give its name."
                )
            inside = "" if last in ("", ".") else f"{last}/"
            below = [name.removeprefix(inside) for name in sent if name.startswith(inside)]
            chosen.add(select_files(path, below), inside)
        elif (reason := why_not(path.name, path, sent)) is not None:
            raise LaunchError(
                f"dependencies has {extra!r}, which is not sent: {reason}. HINT: leave it out, or list it in"
                f" send_anyway: [{path.name!r}]."
            )
        else:
            chosen.taken[path.name] = path
    return chosen


def _source(config: JobConfig, scratch: Path, session: Session | None = None) -> tuple[Path, str]:
    """The source folder, and the path of the entry script in it."""
    if config.recipe is not None:
        from lightning_sagemaker.recipe_files import recipe_folder
        from lightning_sagemaker.recipe_table import RECIPES

        if config.entry_point is not None:
            raise LaunchError("recipe and entry_point are both set. HINT: give one of them.")
        if config.recipe not in RECIPES:
            raise LaunchError(
                f"Unknown recipe {config.recipe!r}. HINT: {suggestion(config.recipe, RECIPES)}"
                " `lightning-sagemaker ls` lists them."
            )
        return recipe_folder(config.recipe), "train.py"
    if config.entry_point is None:
        raise LaunchError("Neither recipe nor entry_point is set. HINT: set one of them.")
    entry = PurePosixPath(config.entry_point)
    if (config.source_dir or "").startswith("s3://"):
        s3 = make_client("s3", config.region) if session is None else session.client("s3")
        folder = _fetched(str(config.source_dir), s3, scratch)
    elif config.git_config is not None:
        folder = clone(config.git_config, scratch) / (config.source_dir or "")
    elif config.source_dir:  # as in SDK 2, an empty one is none
        folder = Path(config.source_dir)
    else:
        folder, entry = Path(config.entry_point).parent, PurePosixPath(Path(config.entry_point).name)
    if not is_there(str(folder)) or not folder.is_dir():
        raise LaunchError(f"source_dir={str(config.source_dir)!r} is not a directory. HINT: give an existing one.")
    if "\0" in str(entry):
        raise LaunchError(f"entry_point={str(entry)!r} was set. HINT: it must be a .py or .sh script.")
    script = (folder / entry).resolve()
    if not script.is_relative_to(folder.resolve()):
        raise LaunchError(
            f"entry_point={config.entry_point!r} is outside source_dir={str(folder)!r}. HINT: give its path relative "
            "to that folder."
        )
    if not script.is_file():
        raise LaunchError(
            f"entry_point={str(entry)!r} is not in {str(folder)!r}. HINT: give its path relative to that folder."
        )
    if script.suffix not in (".py", ".sh"):
        raise LaunchError(f"entry_point={str(entry)!r} was set. HINT: it must be a .py or .sh script.")
    return folder, script.relative_to(folder.resolve()).as_posix()


def _fetched(uri: str, s3: Client, scratch: Path) -> Path:
    """Download and unpack the archive at an S3 URI; return the folder."""
    archive, folder = scratch / "source.tar.gz", scratch / "source"
    with translate_aws_errors(f"Getting {uri}"):
        was_there = fetch_object(s3, uri, archive)
    if not was_there:
        raise LaunchError(
            f"source_dir={uri!r} is not an S3 object. HINT: give the URI of a source.tar.gz, or a local folder."
        )
    unpack(archive, folder)
    return folder


def _archive(contents: dict[str, bytes]) -> bytes:
    """A ``tar.gz`` that does not depend on times, owners or the file system's order."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in sorted(contents.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755 if name.endswith(".sh") else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
