# SPDX-License-Identifier: Apache-2.0
"""Secrets that what is around them tells: a name in one line and its value in the next, a command's option, a sentence.

What tells is that of the tools' documentation: environment variables of Kubernetes, ECS and CloudFormation, variables of
Terraform, arguments in a list, block scalars of YAML, calls with a user's name and password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lightning_sagemaker.container.lightning_redaction import is_key, is_named_secret, is_password

_NAME = r"(?P<name>(?<![A-Za-z0-9_.])[A-Za-z][\w.-]{0,60})"
_VALUE = r"(?P<value>[\w~.+/=!@#$%^&*|:-]{8,})"
_QUOTE = r"\\?['\"]?"

_NAMED = tuple(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        rf"\b(?:name|key|\w+key|variable){_QUOTE}[ \t]{{0,4}}[:=][ \t]{{0,4}}{_QUOTE}{_NAME}{_QUOTE}\s{{0,3}},?\s{{0,40}}"
        rf"{_QUOTE}(?:\w{{1,12}})?value{_QUOTE}[ \t]{{0,4}}[:=][ \t]{{0,4}}{_QUOTE}{_VALUE}",
        rf"\bvalue{_QUOTE}:[ \t]?{_QUOTE}{_VALUE}{_QUOTE},\s{{0,20}}{_QUOTE}(?:name|key){_QUOTE}:[ \t]?{_QUOTE}{_NAME}",
        rf"name>{_NAME}</[\w-]*name>\s*<[\w-]*value>{_VALUE}<",
        rf"{_NAME}:[ \t]*\n(?:[ \t]+\w+:[ \t]+\S[^\n]*\n){{0,6}}?[ \t]+default:[ \t]*{_QUOTE}{_VALUE}",
        rf"\bvariable\s+\"{_NAME}\"\s*\{{[^{{}}]{{0,300}}?\bdefault\s*=\s*\"{_VALUE}\"",
        rf"<\w+[^<>\n]{{0,80}}?\bname=\"{_NAME}\"[^<>\n]{{0,80}}>{_VALUE}<",
        rf"{_NAME}{_QUOTE}:[ \t]*[|>][+-]?[ \t]*\n[ \t]+{_VALUE}[ \t]*$",
        rf"--{_NAME}{_QUOTE},\s{{0,40}}{_QUOTE}{_VALUE}",
        rf"{_NAME}{_QUOTE}[ \t]?[=:][ \t]?[\w.]{{1,40}}\(\s?[rbuf]{{0,2}}['\"]{_VALUE}['\"]\s?\)",
        rf"--?[\w-]{{1,40}}={_NAME}={_VALUE}",
        rf"{_NAME}{_QUOTE}[ \t]?[=:][ \t]?{_QUOTE}(?:bearer|basic|token|api-?key)[ \t]{_VALUE}",
        rf"{_NAME}[ \t]*\?=[ \t]*{_VALUE}",
        rf"(?P<name>(?<!\w)[A-Za-z][\w.-]*(?: [\w.-]+){{0,3}})\**[ \t]?:\**[ \t]?`{_VALUE}`",
        rf"\bset[ \t]+\S{{0,80}}?(?P<name>_\w{{1,30}})[ \t=]+{_VALUE}",
    )
)
"""Patterns with a name and a value, which together tell."""

_COMMANDS = (
    r"docker|podman|nerdctl|skopeo|crane|mongo\w*|redis-cli|sqlcmd|bcp|unzip|zip|7z\w?|unrar|openssl|ssh-keygen|ldap\w+|smbclient"
    r"|cqlsh|az"
)
_SAID = tuple(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        rf"\b(?:{_COMMANDS})\b[^\n|;&]{{0,200}}?\s-(?:[akNpPw][ =]['\"]?|[pP]){_VALUE}",
        r"\bcurl\b[^\n]*?\s(?:-u|--user)[ =]?['\"]?(?P<value>[\w-]{16,}):['\"\s]",
        rf"\becho\s+(?:-n\s+)?['\"]?{_VALUE}['\"]?\s*(?:\|[^\n]*(?:stdin|login|passw)|\))",
        rf"\bput-(?:parameter|secret-value)\b[^\n]*?--(?:value|secret-string)[ =]['\"]?{_VALUE}",
        rf"\bauthorization{_QUOTE}[ \t]?[:=,][ \t]?{_QUOTE}(?:[a-z-]{{0,12}}key|apitoken|digest)[ \t]+{_VALUE}",
        r"(?:\bauth[ \t]?=[ \t]?|(?:auth|ftp|smtp|imap|passw|connect|login)\w{0,12})"
        rf"\((?:[^()\n]{{1,80}}?,[ \t]?)?['\"]{_VALUE}['\"]",
        r"\b(?:password|passwort|passphrase|pass|pw|token|api key|secret key|access key)[ \t]+"
        rf"(?:(?:is|ist)[ \t]+)?['\"`]?{_VALUE}",
        rf"\b(?:login|user(?:name)?|credentials?)[ \t]?[:=][ \t]?\S{{1,40}}[ \t]?/[ \t]?{_VALUE}",
        rf"\bidentified[ \t]+by[ \t]+['\"]{_VALUE}['\"]",
        rf"\bConvertTo-SecureString[ \t]+['\"]{_VALUE}['\"]",
    )
)
"""Patterns with a value that is one if it is random."""

_CERTAIN = (
    re.compile(  # an app password of Google
        r"(?i)(?:login\(|passw?\w{0,10}['\"]?\]?[ \t]?[:=])[^\n]{0,80}?['\"](?P<value>(?:[a-z]{4} ){3}[a-z]{4})['\"]"
    ),
    re.compile(
        r"\bkind:[ \t]*['\"]?Secret\b[\s\S]{0,2000}?\n[ \t]*data:[ \t]*\n(?:[ \t]+[\w.-]+:[^\n]*\n){0,40}?"
        r"[ \t]+[\w.-]+:[ \t]*(?P<value>[A-Za-z0-9+/]{16,}={0,2})[ \t]*$",
        re.MULTILINE,
    ),
)


def secrets_in_context(text: str) -> Iterator[tuple[int, int, str]]:
    """Begin, end and kind of each secret that is told by what is around it."""
    for pattern in _NAMED:
        for match in pattern.finditer(text):
            if is_named_secret(match["name"], match["value"]):
                yield *match.span("value"), f"value of {match['name']}"
    for pattern in _SAID:
        for match in pattern.finditer(text):
            if is_key(match["value"]) or is_password(match["value"]):
                yield *match.span("value"), "password in a command, a call or a sentence"
    for pattern in _CERTAIN:
        for match in pattern.finditer(text):
            yield *match.span("value"), "password"
