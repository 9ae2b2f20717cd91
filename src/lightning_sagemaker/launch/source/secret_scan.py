# SPDX-License-Identifier: Apache-2.0
"""Secrets in the text files that would be sent: found by detect-secrets, and by format.

The formats are those of :mod:`~lightning_sagemaker.container.lightning_redaction`: detect-secrets 1.5 has no detectors
for most current providers. It reads about 0.1 MB a second, so it gets only the lines that can contain a secret. Lines
with its pragma, ``pragma: allowlist secret``, are skipped.
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

from lightning_sagemaker.container.lightning_redaction import (
    PASSWORD_NAME,
    is_key,
    is_password,
    is_placeholder,
    known_secrets,
    named_secrets,
)
from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.source.file_kinds import CREDENTIALS, is_text, text_of, why_not_by_name
from lightning_sagemaker.launch.source.secret_contexts import secrets_in_context

_DETECTORS = (
    "ArtifactoryDetector", "AWSKeyDetector", "AzureStorageKeyDetector", "BasicAuthDetector", "CloudantDetector",
    "DiscordBotTokenDetector", "GitHubTokenDetector", "GitLabTokenDetector", "IbmCloudIamDetector", "IbmCosHmacDetector",
    "JwtTokenDetector", "KeywordDetector", "MailchimpDetector", "NpmDetector", "OpenAIDetector",
    "PypiTokenDetector", "SendGridDetector", "SlackDetector", "SoftlayerDetector", "SquareOAuthDetector", "StripeDetector",
    "TelegramBotTokenDetector", "TwilioKeyDetector",
)  # fmt: skip
"""All detectors but those of IP addresses, of high entropy, which report every hash, and of the line above a private key."""

_CAN_HOLD = re.compile(r"(?i)pass|pwd|secret|key|token|auth|cred|://[^/\s]*@|PRIVATE|[A-Za-z0-9+/_=.-]{20,}")
_LONGEST = 4096
"""Maximum characters of a line that is scanned; longer ones are searched for known tokens and in members of JSON."""
_MEMBER = re.compile(
    r"""(?i)\\?["'][\w.-]{0,40}(?:pass|pwd|secret|token|key|auth|cred)[\w.-]{0,40}\\?["']\s?:\s?\\?["'][^"'\\]{8,400}"""
)
_PRAGMA = "pragma: allowlist secret"
_IMAGE = re.compile(r'^\s*"(?:image|application|video|audio)/[\w.+-]+":')
"""A picture or file in a notebook's output, on one line in base64."""
_REFERENCE = re.compile(r"(?i)(?:name|field|hasher|path|file|arn|ur[il]|type|class|policy)['\"]?\s?[:=]")
"""A setting whose name tells that it is no secret itself."""
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_ENCRYPTED = re.compile(r"\s*['\"]?[\w.-]+['\"]?:\s?['\"]?(?:ENC\[AES|Ag[A-D][\w+/]{200,}=*\s*$)")
"""A value that SOPS or Sealed Secrets has encrypted."""
_NO_SECRET = re.compile(r"(?i)(?:hash|checksum|existing|from|policy|_env|secret_?(?:name|ref))[\w/]*['\"]?\s?[:=]")
"""A setting whose name tells that its value is a hash, or names a secret."""
_PROSE = re.compile(r" (?:a|and|are|for|in|is|of|that|the|to|with) |^(?:ask|from|in|read|see|via) ")
_SHOWN = 10


@dataclass(frozen=True, order=True)
class Finding:
    """A possible secret; its text is not stored.

    Attributes:
        file: Name of the file in the archive.
        line: Line number, from 1.
        kind: Kind of the secret, such as ``private key``.

    """

    file: str
    line: int
    kind: str


def can_scan() -> bool:
    """Whether detect-secrets is installed."""
    return find_spec("detect_secrets") is not None


def check_secrets(contents: Mapping[str, bytes], send_anyway: Sequence[str] = ()) -> None:
    """Check that no text file contains a secret.

    Args:
        contents: Name -> content of each file. Binary files other than wheels are skipped.
        send_anyway: ``FILE:LINE`` and ``FILE:*`` (the name may be a pattern) of false positives.

    Raises:
        LaunchError: If one does; the message names the lines.

    """
    refuse(
        [one for name, content in contents.items() for one in find_secrets(name, content)], send_anyway, "The source"
    )


def refuse(findings: Iterable[Finding], send_anyway: Sequence[str], what: str) -> None:
    """Refuse findings that are not accepted.

    Args:
        findings: Findings in any order, possibly with duplicates.
        send_anyway: As in :func:`check_secrets`.
        what: What contains them, with which the message begins, such as ``The source``.

    Raises:
        LaunchError: If a finding is not accepted; the message names the lines.

    """
    left = [one for one in sorted(set(findings)) if not _is_accepted(one, send_anyway)]
    if not left:
        return
    lines = ", ".join(f"{one.file}:{one.line} ({one.kind})" for one in left[:_SHOWN])
    more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
    raise LaunchError(
        f"{what} contains what looks like secrets, in {lines}{more}. HINT: remove them and pass them through AWS Secrets"
        f" Manager; to send a false positive, use send_anyway: ['{left[0].file}:{left[0].line}'], or add the comment"
        f" `{_PRAGMA}` in its line."
    )


def find_secrets(name: str, content: bytes) -> Iterator[Finding]:
    """Possible secrets in a text file or wheel; none in any other binary file."""
    if PurePosixPath(name).suffix == ".whl":
        yield from _in_archive(name, content)
    elif is_text(content):
        text = text_of(content).replace("\r\n", "\n").replace("\r", "\n")
        lines = [
            "" if _PRAGMA in line or _IMAGE.match(line) or _ENCRYPTED.match(line) else line for line in text.split("\n")
        ]
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
    short = "\n".join(line if len(line) <= _LONGEST else _members(line) for line in lines)
    spans += [*named_secrets(short), *secrets_in_context(short)]
    for begin, _, kind in spans:
        yield Finding(name, _line_of(begin, begins), kind)


def _members(line: str) -> str:
    """Of a long line the members of JSON that may hold a secret, at their places."""
    parts, end = [], 0
    for match in _MEMBER.finditer(line):
        parts += [" " * (match.start() - end), match.group()]
        end = match.end()
    return "".join([*parts, " " * (len(line) - end)])


def _line_of(position: int, begins: Sequence[int]) -> int:
    return bisect_right(begins, position)


def _by_detect_secrets(name: str, lines: Sequence[str]) -> Iterator[Finding]:
    """Scan a copy with the same suffix, on which detect-secrets depends, without the lines that cannot have a secret."""
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
            value = one.secret_value or "a secret that is not said"
            if not (is_placeholder(value) or _is_said(value) or _is_reference(lines[one.line_number - 1], value)):
                yield Finding(name, one.line_number, one.type.lower())


def _is_said(value: str) -> bool:
    """Whether a text is a sentence, or words about passwords, such as a label's in some language."""
    return bool(_PROSE.search(value) or (PASSWORD_NAME.search(value) and value.replace(" ", "").isalpha()))


def _is_reference(line: str, value: str) -> bool:
    """Whether a line names where a secret is or of which kind, or a database has its user's name as password by default."""
    if f"://{value}:{value}@" in line or _NO_SECRET.search(line):
        return True
    is_path = _DOTTED.fullmatch(value) or not (is_key(value) or is_password(value))
    return bool(_REFERENCE.search(line) and is_path)


def _is_accepted(finding: Finding, send_anyway: Sequence[str]) -> bool:
    for entry in send_anyway:
        pattern, colon, line = entry.rpartition(":")
        if colon and line in ("*", str(finding.line)) and fnmatchcase(finding.file, pattern):
            return True
    return False
