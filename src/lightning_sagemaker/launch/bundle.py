# SPDX-License-Identifier: Apache-2.0
"""The source of a job as one archive: program, requirements and this package's wheel; the same for the same input."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from lightning_sagemaker.launch.errors import LaunchError, nearest
from lightning_sagemaker.launch.job_config import JobConfig
from lightning_sagemaker.launch.wheel import make_wheel

MAX_BYTES = 200 * 2**20
"""Of the files together: more than that is data, which belongs into a channel."""

REQUIREMENTS = "requirements.txt"

_CLONE_SECONDS = 600
"""For a large repository over a slow line; git itself waits for ever."""

_LEFT_OUT = (
    ".git", ".hg", ".svn", ".venv", "venv", "env", "node_modules", "__pycache__", "*.pyc", "*.egg-info", ".mypy_cache",
    ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".cache", ".DS_Store", "runs", "lightning_logs", "wandb", "mlruns",
    "*.ckpt", "*.safetensors", "*.pt", "*.pth", "*.distcp", "*.parquet", "*.arrow", "*.tar.gz", "*.zip",
)  # fmt: skip
"""What is no source: history, environments, caches, weights and data."""

_SECRETS = (
    ".env", ".env.*", "*.pem", "*.key", "id_rsa*", "id_ed25519*", ".aws", ".ssh", ".netrc", "_netrc", ".pypirc",
    "credentials", "credentials.json", "*.kdbx", ".huggingface", ".kaggle",
)  # fmt: skip
"""What must not leave this machine."""

_IMAGE_OWN = re.compile(r"^\s*(torch|torchvision|torchaudio)\s*($|[\[=<>!~;#@ ])", re.IGNORECASE)


@dataclass(frozen=True)
class Bundle:
    """A source archive.

    Attributes:
        content: A ``tar.gz``.
        entry_script: Below its top.
        digest: SHA-256 of ``content``, hexadecimal.
        files: Names in it.
        left_out: Names of files that were not taken because of what they look like.
        has_requirements: Whether there is a ``requirements.txt``.

    """

    content: bytes
    entry_script: str
    digest: str
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    has_requirements: bool

    @property
    def name(self) -> str:
        """File name, which says what is in it."""
        return f"source-{self.digest[:16]}.tar.gz"

    def write(self, folder: Path) -> Path:
        """Write the archive into ``folder``; return its path."""
        path = folder / self.name
        path.write_bytes(self.content)
        return path


def make_bundle(config: JobConfig, include_plugin: bool) -> Bundle:
    """Collect the source of a job.

    Args:
        config: With ``recipe`` or ``entry_point``.
        include_plugin: Whether this package's wheel goes along.

    Raises:
        LaunchError: If there is no such recipe, folder or script; the script is outside its folder; the files are too
            large; or the requirements would replace the image's torch.

    """
    with tempfile.TemporaryDirectory() as scratch:
        source, entry = _source(config, Path(scratch))
        is_alone = config.recipe is None and config.source_dir is None
        taken, left_out = ({entry: source / entry}, []) if is_alone else _files(source)
        for extra in config.dependencies:
            path = Path(extra)
            if not path.exists():
                raise LaunchError(
                    f"dependencies has {extra!r}, which is not on this machine. HINT: give existing paths."
                )
            more, less = _files(path) if path.is_dir() else ({path.name: path}, [])
            taken |= {f"{path.name}/{name}" if path.is_dir() else name: file for name, file in more.items()}
            left_out += less
        if entry not in taken:
            raise LaunchError(f"entry_point={entry!r} is among the files that are not sent. HINT: rename it.")
        size = sum(path.stat().st_size for path in taken.values())
        if size > MAX_BYTES:
            largest = max(taken, key=lambda name: taken[name].stat().st_size)
            raise LaunchError(
                f"The source holds {size / 2**20:.0f} MiB, {MAX_BYTES // 2**20} at most are sent; the largest file is"
                f" {largest}. HINT: pass data as an input channel."
            )
        contents = {name: path.read_bytes() for name, path in taken.items()}
    check_requirements(contents.get(REQUIREMENTS, b"").decode(errors="replace"))
    if include_plugin:
        wheel, content = make_wheel()
        extra_name = "[recipes]" if config.recipe else ""
        contents[wheel] = content
        own = contents.get(REQUIREMENTS, b"").decode(errors="replace")
        contents[REQUIREMENTS] = f"./{wheel}{extra_name}\n{own}".encode()
    archive = _archive(contents)
    digest = hashlib.sha256(archive).hexdigest()
    return Bundle(archive, entry, digest, tuple(sorted(contents)), tuple(sorted(left_out)), REQUIREMENTS in contents)


def _source(config: JobConfig, scratch: Path) -> tuple[Path, str]:
    """The folder that is sent, and the script in it."""
    if config.recipe is not None:
        from lightning_sagemaker.recipe_command import RECIPES
        from lightning_sagemaker.recipe_files import recipe_folder

        if config.entry_point is not None:
            raise LaunchError("recipe and entry_point are both set. HINT: give one of them.")
        if config.recipe not in RECIPES:
            raise LaunchError(
                f"No recipe is called {config.recipe!r}. HINT: did you mean {nearest(config.recipe, RECIPES)!r}?"
                " `lightning-sagemaker ls` lists them."
            )
        return recipe_folder(config.recipe), "train.py"
    if config.entry_point is None:
        raise LaunchError("Neither recipe nor entry_point is set. HINT: say what is to be run.")
    entry = PurePosixPath(config.entry_point)
    if config.git_config is not None:
        folder = _clone(config.git_config, scratch) / (config.source_dir or "")
    elif config.source_dir is not None:
        folder = Path(config.source_dir)
    else:
        folder, entry = Path(config.entry_point).parent, PurePosixPath(Path(config.entry_point).name)
    if not folder.is_dir():
        raise LaunchError(f"source_dir={str(config.source_dir)!r} is no folder. HINT: give an existing one.")
    script = (folder / entry).resolve()
    if not script.is_relative_to(folder.resolve()):
        raise LaunchError(
            f"entry_point={config.entry_point!r} is outside source_dir={str(folder)!r}. HINT: give its path from there."
        )
    if not script.is_file():
        raise LaunchError(f"entry_point={str(entry)!r} is not in {str(folder)!r}. HINT: give its path from there.")
    if script.suffix not in (".py", ".sh"):
        raise LaunchError(f"entry_point={str(entry)!r} was set. HINT: it is a script, .py or .sh.")
    return folder, script.relative_to(folder.resolve()).as_posix()


def _clone(git: object, scratch: Path) -> Path:
    if not isinstance(git, dict) or not git.get("repo"):
        raise LaunchError(f'git_config={git!r} was set. HINT: write {{"repo": "https://...", "branch": "main"}}.')
    unknown = set(git) - {"repo", "branch", "commit"}
    if unknown:
        raise LaunchError(f"git_config has the key {min(unknown)!r}. HINT: repo, branch and commit are known.")
    target = scratch / "repository"
    branch = ["--branch", git["branch"]] if git.get("branch") else []
    shallow = [] if git.get("commit") else ["--depth", "1"]
    commands = [["git", "clone", "--quiet", *shallow, *branch, "--", git["repo"], str(target)]]
    if git.get("commit"):
        commands.append(["git", "-C", str(target), "checkout", "--quiet", git["commit"]])
    for command in commands:
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_CLONE_SECONDS)
        except OSError as error:
            raise LaunchError(f"git cannot be started: {error.strerror}. HINT: install it.") from error
        except subprocess.TimeoutExpired as error:
            raise LaunchError(
                f"{git['repo']!r} was not cloned in {_CLONE_SECONDS} s. HINT: clone it yourself and give source_dir."
            ) from error
        if done.returncode:
            raise LaunchError(
                f"{git['repo']!r} cannot be cloned: {done.stderr.strip()[-300:]}. HINT: check repo, branch and commit."
            )
    return target


def _files(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Name -> file for what is sent, and the names of what is not."""
    taken: dict[str, Path] = {}
    left_out: list[str] = []
    for path in _walk(folder, left_out, folder):
        taken[path.relative_to(folder).as_posix()] = path
    return taken, left_out


def _walk(folder: Path, left_out: list[str], top: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if any(fnmatch(path.name, pattern) for pattern in (*_LEFT_OUT, *_SECRETS)):
            left_out.append(path.relative_to(top).as_posix())
        elif path.is_dir() and not path.is_symlink():
            yield from _walk(path, left_out, top)
        elif path.is_file() and path.resolve().is_relative_to(top.resolve()):
            yield path
        else:  # a link out of the folder, a socket, a device
            left_out.append(path.relative_to(top).as_posix())


def check_requirements(text: str) -> None:
    """Check that a ``requirements.txt`` leaves the image's torch alone.

    Raises:
        LaunchError: If it names torch, torchvision or torchaudio.

    """
    for line in text.splitlines():
        if _IMAGE_OWN.match(line):
            raise LaunchError(
                f"{REQUIREMENTS} lists {line.strip()!r}, which would replace the image's own build. HINT: take it out;"
                " pytorch_version chooses the image."
            )


def _archive(contents: dict[str, bytes]) -> bytes:
    """A ``tar.gz`` without times, owners and order of the file system."""
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
