# SPDX-License-Identifier: Apache-2.0
"""Secrets in the texts that would be sent: found by detect-secrets, and by shape.

The shapes are those of :mod:`~lightning_sagemaker.container.lightning_redaction`: detect-secrets 1.5 has no detectors
for most providers of today. It reads about 0.1 MB a second, so it gets only the lines that can hold a secret. Lines
with its own remark, ``pragma: allowlist secret``, are left out.
"""

from __future__ import annotations

import io
import re
import tempfile
import zipfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from lightning_sagemaker.container.lightning_redaction import known_secrets, named_secrets
from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.source.file_kinds import CREDENTIALS, is_text, why_not_by_name

_DETECTORS = (
    "ArtifactoryDetector", "AWSKeyDetector", "AzureStorageKeyDetector", "BasicAuthDetector", "CloudantDetector",
    "DiscordBotTokenDetector", "GitHubTokenDetector", "GitLabTokenDetector", "IbmCloudIamDetector", "IbmCosHmacDetector",
    "JwtTokenDetector", "KeywordDetector", "MailchimpDetector", "NpmDetector", "OpenAIDetector", "PrivateKeyDetector",
    "PypiTokenDetector", "SendGridDetector", "SlackDetector", "SoftlayerDetector", "SquareOAuthDetector", "StripeDetector",
    "TelegramBotTokenDetector", "TwilioKeyDetector",
)  # fmt: skip
"""All but the detectors of addresses, and of high entropy, which take every hash for a secret."""

_CAN_HOLD = re.compile(r"(?i)pass|pwd|secret|key|token|auth|cred|://[^/\s]*@|PRIVATE|[A-Za-z0-9+/_=.-]{20,}")
_LONGEST = 4096
"""Characters of a line that is read; a longer one is data, of which only the shapes of known tokens are looked for."""
_PRAGMA = "pragma: allowlist secret"
_IMAGE = re.compile(r'^\s*"(?:image|application|video|audio)/[\w.+-]+":')
"""A picture or file in a notebook's output, on one line in base64."""
_SHOWN = 10


@dataclass(frozen=True, order=True)
class Finding:
    """What looks like a secret; its text is kept nowhere.

    Attributes:
        file: Name in the archive.
        line: Counts from 1.
        kind: What it looks like.

    """

    file: str
    line: int
    kind: str


def can_scan() -> bool:
    """Whether detect-secrets is installed."""
    return find_spec("detect_secrets") is not None


def check_secrets(contents: Mapping[str, bytes], send_anyway: Sequence[str] = ()) -> None:
    """Check that no text of ``contents`` holds a secret.

    Args:
        contents: Name -> content. What is not text is not read, but for wheels.
        send_anyway: ``FILE:LINE`` and ``FILE:*`` (the name may be a pattern) of findings that are none.

    Raises:
        LaunchError: If one does; it names the lines.

    """
    refuse(
        [one for name, content in contents.items() for one in find_secrets(name, content)], send_anyway, "The source"
    )


def refuse(findings: Iterable[Finding], send_anyway: Sequence[str], what: str) -> None:
    """Refuse findings that are not accepted.

    Args:
        findings: In any order, some perhaps twice.
        send_anyway: As in :func:`check_secrets`.
        what: Holds them, as a message begins.

    Raises:
        LaunchError: If there is one; it names the lines.

    """
    left = [one for one in sorted(set(findings)) if not _is_accepted(one, send_anyway)]
    if not left:
        return
    lines = ", ".join(f"{one.file}:{one.line} ({one.kind})" for one in left[:_SHOWN])
    more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    raise LaunchError(
        f"{what} contains what looks like secrets, in {lines}{more}. HINT: remove them and pass them through AWS "
        "Secrets Manager; to send"
        f" a false positive, use send_anyway: ['{left[0].file}:{left[0].line}'], or add the"
        f" comment `{_PRAGMA}` in its line."
    )


def find_secrets(name: str, content: bytes) -> Iterator[Finding]:
    """What looks like a secret in a file."""
    if PurePosixPath(name).suffix == ".whl":
        yield from _in_archive(name, content)
    elif is_text(content):
        text = content.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\r", "\n")
        lines = ["" if _PRAGMA in line or _IMAGE.match(line) else line for line in text.split("\n")]
        yield from _by_shape(name, lines)
        if can_scan():
            yield from _by_detect_secrets(name, lines)


def _in_archive(name: str, content: bytes) -> Iterator[Finding]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.namelist():
                if why_not_by_name(member) == CREDENTIALS:
                    yield Finding(f"{name}/{member}", 1, "a credentials file")
                else:
                    yield from find_secrets(f"{name}/{member}", archive.read(member))
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, OSError) as error:
        raise LaunchError(f"{name} cannot be read: {error}. HINT: rebuild it, or leave it out.") from error


def _by_shape(name: str, lines: Sequence[str]) -> Iterator[Finding]:
    text = "\n".join(lines)
    begins = [match.start() for match in re.finditer("^", text, re.MULTILINE)]
    spans = list(known_secrets(text))
    short = "\n".join(line if len(line) <= _LONGEST else " " * len(line) for line in lines)
    spans += named_secrets(short)
    for begin, _, kind in spans:
        yield Finding(name, _line_of(begin, begins), kind)


def _line_of(position: int, begins: Sequence[int]) -> int:
    return bisect_right(begins, position)


def _by_detect_secrets(name: str, lines: Sequence[str]) -> Iterator[Finding]:
    """Its own reading of a file, which depends on the file's ending; lines without a secret are empty in it."""
    from detect_secrets.core.secrets_collection import SecretsCollection
    from detect_secrets.settings import transient_settings

    kept = [line if len(line) <= _LONGEST and _CAN_HOLD.search(line) else "" for line in lines]
    if not any(kept):
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"source{PurePosixPath(name).suffix}")
        path.write_text("\n".join(kept), encoding="utf-8")
        secrets = SecretsCollection()
        with transient_settings({"plugins_used": [{"name": one} for one in _DETECTORS]}):
            secrets.scan_file(str(path))
        for _, one in secrets:
            yield Finding(name, one.line_number, one.type.lower())


def _is_accepted(finding: Finding, send_anyway: Sequence[str]) -> bool:
    for entry in send_anyway:
        pattern, colon, line = entry.rpartition(":")
        if colon and line in ("*", str(finding.line)) and fnmatchcase(finding.file, pattern):
            return True
    return False
