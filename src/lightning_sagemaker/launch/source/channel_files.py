# SPDX-License-Identifier: Apache-2.0
"""The files of a local folder that are uploaded as a channel: chosen by name, and scanned for tokens.

Unlike source, data has files of any kind, may be gigabytes, and contains words such as ``password``. So credentials,
hidden files and caches are not sent; configuration and code files are scanned like source; the beginnings of all other
text files are searched for tokens of unambiguous formats. Bytes that were not searched are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.source.file_kinds import is_text
from lightning_sagemaker.launch.source.secret_scan import Finding, find_secrets, refuse
from lightning_sagemaker.launch.source.source_files import Selection, select_data, why_not_file_of_data

PREFIX = "inputs"
"""Prefix of the names of a channel's files in ``send_anyway`` and in messages: ``inputs/train/NAME``."""

SEARCHED_OF_FILE = 8 * 2**20
"""Maximum bytes of a text file that are searched."""

SEARCHED = 256 * 2**20
"""Bytes of a channel after which no further file is searched."""

_SOURCE_KINDS = (".py", ".sh", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".properties", ".tf", ".ipynb")
_LARGEST_SOURCE = 256 * 1024
"""Maximum bytes of a file that is scanned like source, which takes about a second per 0.1 MB."""
_SOURCES = 2 * 2**20
"""Maximum total bytes of such files in a channel."""

_BINARY = (
    ".parquet", ".arrow", ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".npy", ".npz", ".jpg", ".jpeg", ".png",
    ".webp", ".wav", ".flac", ".mp3", ".mp4", ".gz", ".tar", ".zip", ".zst", ".xz", ".bz2", ".tfrecord", ".pkl",
)  # fmt: skip
"""Suffixes of files that are not opened."""

_TOKENS = re.compile(
    rb"(?P<private_key>-----BEGIN[ A-Z0-9]*PRIVATE KEY(?: BLOCK)?-----(?:\\n|\s)*[A-Za-z0-9+/=]{40})"
    rb"|(?P<AWS_key>(?<![A-Za-z0-9/+])A[KS]IA(?=[A-Z]*[0-9])[A-Z0-9]{16}(?![A-Za-z0-9/+]))"
    rb"|(?P<GitHub_token>\bgh[opsur]_[A-Za-z0-9]{36}\b|\bgithub_pat_[A-Za-z0-9_]{60,})"
    rb"|(?P<GitLab_token>\bglpat-[\w-]{20,})"
    rb"|(?P<Hugging_Face_token>\bhf_[A-Za-z]{34}\b)"
    rb"|(?P<Slack_token>\bxox[abeprs]-\d{6,}-[\w-]{10,}|https://hooks\.slack\.com/services/\S{20,})"
    rb"|(?P<API_key>\bsk-(?:ant|proj|svcacct)-[\w-]{32,}|\bsk_live_[A-Za-z0-9]{20,}|\bAIza[\w-]{35}\b)"
    rb"|(?P<package_token>\bnpm_[A-Za-z0-9]{36}\b|\bpypi-AgEI[\w-]{50,}|\bdckr_pat_[\w-]{20,}|\bSG\.[\w.-]{40,})"
)
"""Long token formats with a distinctive prefix, which no word, hash, sequence or identifier matches by chance."""

_BEGINNINGS = (
    b"PRIVATE KEY", b"AKIA", b"ASIA", b"gho_", b"ghp_", b"ghs_", b"ghu_", b"ghr_", b"github_pat_", b"glpat-", b"hf_", b"xox",
    b"hooks.slack.com", b"sk-", b"sk_live_", b"AIza", b"npm_", b"pypi-AgEI", b"dckr_pat_", b"SG.",
)  # fmt: skip
"""Each token contains one of these; searching for them is much faster than matching the expression."""

_CHUNK, _OVERLAP = 2**20, 4096


@dataclass(frozen=True)
class ChannelFiles:
    """The files of a local folder that are uploaded.

    Attributes:
        taken: Name relative to the folder -> file.
        left_out: Name -> reason why it is not sent.
        size: Number of bytes that are uploaded.
        unsearched: Bytes of them that were not searched for tokens: binary files, and texts beyond the limits.

    """

    taken: Mapping[str, Path]
    left_out: Mapping[str, str]
    size: int
    unsearched: int

    def stage(self, folder: Path) -> None:
        """Create a symlink to each file in an empty folder, which is uploaded in place of the original folder."""
        for name, path in self.taken.items():
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path.resolve())


def choose_channel_files(channel: str, place: Path, send_anyway: Sequence[str] = ()) -> ChannelFiles:
    """Choose and scan the files to upload for a channel.

    Args:
        channel: Name of the channel.
        place: The channel's local folder or file.
        send_anyway: ``inputs/CHANNEL/NAME`` of files to send, and ``inputs/CHANNEL/NAME:LINE`` (or ``:*``) of false
            positives.

    Raises:
        LaunchError: If nothing is left to be sent, or a text holds what looks like a secret.

    """
    below = f"{PREFIX}/{channel}/"
    named = [one.removeprefix(below) for one in send_anyway if one.startswith(below)]
    if place.is_dir():
        chosen = select_data(place, named)
    else:
        reason = why_not_file_of_data(place.name, place, named)
        chosen = Selection({} if reason else {place.name: place}, {place.name: reason} if reason else {})
    if not chosen.taken:
        why = "; ".join(f"{name}: {reason}" for name, reason in list(chosen.left_out.items())[:5]) or "it is empty"
        raise LaunchError(
            f"Nothing in channel {channel!r} is sent ({why}). HINT: give another folder, or list files in send_anyway:"
            f" ['{below}NAME']."
        )
    sizes = {name: path.stat().st_size for name, path in chosen.taken.items()}
    search = _Search()
    try:
        found = [
            Finding(below + name, line, kind)
            for name, path in chosen.taken.items()
            for line, kind in search.findings(name, path, sizes[name])
        ]
    except OSError as error:
        raise LaunchError(
            f"{error.filename} of channel {channel!r} cannot be read: {error.strerror}. HINT: change its permissions, or"
            " move it out of the folder."
        ) from error
    refuse(found, send_anyway, f"The data of channel {channel!r}")
    size = sum(sizes.values())
    return ChannelFiles(chosen.taken, dict(sorted(chosen.left_out.items())), size, size - search.bytes)


class _Search:
    """Searches files for secrets until the limits are reached.

    Attributes:
        bytes: Number of bytes searched so far.

    """

    def __init__(self) -> None:
        self.bytes = 0
        self._sources = 0

    def findings(self, name: str, path: Path, size: int) -> Iterator[tuple[int, str]]:
        """Line and kind of each possible secret in a file."""
        kind = PurePosixPath(name).suffix.casefold()
        if kind in _BINARY or self.bytes >= SEARCHED:
            return
        if kind in _SOURCE_KINDS and size <= _LARGEST_SOURCE and self._sources + size <= _SOURCES:
            self._sources += size
            self.bytes += size
            yield from ((one.line, one.kind) for one in find_secrets(name, path.read_bytes()))
            return
        yield from self._tokens(path)

    def _tokens(self, path: Path) -> Iterator[tuple[int, str]]:
        """Search a file for known token formats only, a chunk at a time."""
        left, line, kept = SEARCHED_OF_FILE, 1, b""
        with path.open("rb") as file:
            while left > 0 and (chunk := file.read(min(_CHUNK, left))):
                if left == SEARCHED_OF_FILE and not is_text(chunk):
                    return
                left -= len(chunk)
                self.bytes += len(chunk)
                text = kept + chunk.replace(b"\0", b"")  # of UTF-16, whose tokens have one after each letter
                fresh = len(kept)
                for match in _TOKENS.finditer(text) if any(one in text for one in _BEGINNINGS) else ():
                    if match.end() > fresh:
                        kind = str(match.lastgroup).replace("_", " ")
                        yield line + text.count(b"\n", 0, match.start()), kind
                cut = max(0, len(text) - _OVERLAP)
                line += text.count(b"\n", 0, cut)
                kept = text[cut:]
