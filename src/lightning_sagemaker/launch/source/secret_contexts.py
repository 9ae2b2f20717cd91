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
_SCHEME = r"(?:bearer|basic|token|api-?key)[ \t]+"
_VALUE = rf"(?:{_SCHEME})?" r"(?P<value>[\w~.+/=!@#$%^&*|:-]{8,})"
_QUOTE = r"\\?['\"]?"
_MEMBER = rf"{_QUOTE}[\w.-]{{1,40}}{_QUOTE}:"

_NAMED = tuple(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        rf"\b(?:name|key|\w+key|variable){_QUOTE}[ \t]{{0,4}}[:=][ \t]{{0,4}}{_QUOTE}{_NAME}{_QUOTE}\s{{0,3}},?\s{{0,40}}"
        rf"{_QUOTE}(?:\w{{1,12}})?value{_QUOTE}[ \t]{{0,4}}[:=][ \t]{{0,4}}{_QUOTE}{_VALUE}",
        rf"\bvalue{_QUOTE}:[ \t]?{_QUOTE}{_VALUE}{_QUOTE},\s{{0,20}}{_QUOTE}(?:name|key){_QUOTE}:[ \t]?{_QUOTE}{_NAME}",
        rf">{_NAME}</[\w:-]+>\s*<[\w:-]+>{_VALUE}<",
        rf"{_NAME}:[ \t]*\n(?:[ \t]+\w+:[ \t]+\S[^\n]*\n){{0,6}}?[ \t]+default:[ \t]*{_QUOTE}{_VALUE}",
        rf"\bvariable\s+\"{_NAME}\"\s*\{{[^{{}}]{{0,300}}?\bdefault\s*=\s*\"{_VALUE}\"",
        rf"<\w+[^<>\n]{{0,80}}?\bname=\"{_NAME}\"[^<>\n]{{0,80}}>\s*(?:<\w+>)?{_VALUE}<",
        rf"{_NAME}{_QUOTE}:[ \t]*[|>][+-]?[ \t]*\n[ \t]+{_VALUE}[ \t]*$",
        rf"--{_NAME}{_QUOTE},\s{{0,40}}{_QUOTE}{_VALUE}",
        rf"{_NAME}{_QUOTE}[ \t]?[=:][ \t]?[\w.]{{1,40}}\(\s?[rbuf]{{0,2}}['\"]{_VALUE}['\"]\s?\)",
        rf"{_NAME}{_QUOTE}[ \t]?[=:][ \t]?{_QUOTE}{_SCHEME}{_VALUE}",
        rf"{_NAME}[ \t]*=[ \t]*\(?[rbuf]?['\"][^'\"\n]{{0,40}}['\"],[ \t]*[rbuf]?['\"]{_VALUE}['\"]",
        r"(?P<name>tokens|secrets|passwords|credentials|api_?keys)"
        rf"{_QUOTE}[ \t]?[:=]\s{{0,40}}\{{?\s{{0,40}}(?:{_MEMBER}[^\n,{{}}]{{0,200}}[,\n]\s{{0,40}}){{0,5}}?"
        rf"{_MEMBER}[ \t]?{_QUOTE}{_VALUE}",
        rf"{_NAME}[ \t]*\?=[ \t]*{_VALUE}",
        rf"{_NAME}[ \t]\([^()\n]{{1,30}}\)[ \t]?[:=][ \t]?{_QUOTE}{_VALUE}",
        rf"{_NAME}[ \t]+value=['\"]{_VALUE}",
        rf"{_NAME}[ \t]?:[ \t]?[\w.,|\[\] ]{{1,40}}=[ \t]*[rbuf]?['\"]{_VALUE}",
        rf"{_NAME}{_QUOTE}:[ \t]*\n[ \t]*-[ \t]+{_QUOTE}{_VALUE}",
        rf"(?P<name>token|(?:api|access)_?key|secret|passw\w{{0,6}}|auth)\(\s?[rbuf]{{0,2}}['\"]{_VALUE}['\"]",
        rf"(?P<name>(?<!\w)[A-Za-z][\w.-]*(?: [\w.-]+){{0,3}})\**[ \t]?:\**[ \t]?`{_VALUE}`",
        rf"\|[ *]*(?P<name>(?:[\w.-]+[ ])?(?:passw\w*|secret|token|(?:api|access|secret)[ _-]?key))[ *]*\|[ ]*`?{_VALUE}",
        rf"\bset[ \t]+\S{{0,80}}?(?P<name>_\w{{1,30}})[ \t=]+{_VALUE}",
        rf"\b(?:setx?|config|put)\b[^\n]{{0,80}}?[ \t]{_NAME}[ \t]+{_QUOTE}{_VALUE}",
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
        rf"\b(?:echo|printf)\s+(?:-n\s+)?['\"]?(?:\w+:)?{_VALUE}['\"]?"
        r"\s*(?:\|[^\n]*(?:stdin|login|passw|sudo|base64)|>+\s*\S*(?:token|key|pass|secret|cred)|\))",
        rf"\b(?:put-parameter|secret)\b[^\n]*?--(?:value|secret-string|body)[ =]['\"]?{_VALUE}",
        r"\s(?:(?:-[uU][ ]?|--user(?:name)?[ =]|user[ ]|login[ ])[\w.@\\-]+(?:[,%:]|[ ]+-[pPwWAX][ ]?)"
        rf"|/user:\S+[ ]|add_?user[ ]+\S+[ ]+|/p:)['\"]?{_VALUE}",
        rf"\bnet[ ]use[ ][^\n]*?[ ]{_VALUE}[ ]/user:",
        rf"(?<!<)<<<[ ]?['\"]?(?![0-9a-f]+\b){_VALUE}",
        rf"\b(?:htpasswd[ \t]+-\w*b\w*[ \t]+\S+|config[ \t]+http-basic\.\S+)[ \t]+\S+[ \t]+['\"]?{_VALUE}",
        r"\b(?:sqlplus|expdp|impdp|sqlldr)\b[^\n]*?\s['\"]?\w+/(?P<value>[^\s@/'\"]{8,})@",
        rf"\bauthorization{_QUOTE}[ \t]?[:=,][ \t]?{_QUOTE}(?:[a-z-]{{0,12}}key|apitoken|digest)[ \t]+{_VALUE}",
        r"(?:\bauth[ \t]?=[ \t]?|(?:auth|ftp|smtp|imap|passw|conn|login|cred)\w{0,12})"
        rf"\((?:[^()\n]{{1,80}}?,[ \t]?)?['\"]{_VALUE}['\"]",
        r"\b(?:password|passwort|passphrase|requirepass|masterauth|pass|pw|token|api key|secret key|access key)[ \t]+"
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


_HEADER = re.compile(r"^[^\n]*(?:passw|secret|token|api.?key)[^\n]*\n", re.IGNORECASE | re.MULTILINE)
_COLUMN = re.compile(r"[\w \"'/.-]{0,20}(?:passw\w*|secret|token|api.?key)[ \"']*\n?", re.IGNORECASE)
_BETWEEN_CELLS = re.compile(r"[,;\t|]")
_RECORDS, _CHARACTERS = 20, 10_000
"""How much of a table is looked at."""


def _in_tables(text: str) -> Iterator[tuple[int, int, str]]:
    """Passwords and keys in columns of such a name, in delimited text and Markdown."""
    for header in _HEADER.finditer(text):
        names = _BETWEEN_CELLS.split(header.group())
        columns = [place for place, name in enumerate(names) if _COLUMN.fullmatch(name)] if len(names) > 1 else []
        begin = header.end()
        lines = text[begin : begin + _CHARACTERS].split("\n", _RECORDS) if columns else []
        for cells in map(_BETWEEN_CELLS.split, lines):
            if len(cells) != len(names):
                break
            for place in columns:
                value = cells[place].strip(" \"'`")
                if is_key(value) or is_password(value):
                    yield begin, begin + sum(map(len, cells)) + len(cells) - 1, f"value of {names[place].strip()}"
            begin += sum(map(len, cells)) + len(cells)


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
    yield from _in_tables(text)
    for pattern in _CERTAIN:
        for match in pattern.finditer(text):
            yield *match.span("value"), "password"
