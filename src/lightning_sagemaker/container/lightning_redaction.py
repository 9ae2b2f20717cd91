# SPDX-License-Identifier: Apache-2.0
"""Detects secrets in texts, and masks them.

As :mod:`lightning_driver`: standard library only, Python 3.6. It is used in the container, for the failure reason, and
by the scan of the source.
"""

import json
import math
import re
from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

if TYPE_CHECKING or __package__:
    from lightning_sagemaker.container.lightning_secret_formats import FORMATS
else:  # in a container the files are in one folder
    from lightning_secret_formats import FORMATS

MASK = "***"

_NAME = (
    r"secret|token(?!i[sz])|passw|passphrase|[_-]pwd|api_?key|access_?key|account_?key|private|cred(?:ential|s)"
    r"|auth_?key|signing_?key"
)
TELLING_NAME = re.compile(_NAME, re.IGNORECASE)
"""Matches names of variables or settings whose values are secrets."""

_SHORTEST = 6
"""Minimum length of a secret variable's value: shorter ones occur in texts by chance."""

_ASSIGNED = re.compile(
    r"(?P<name>[A-Za-z](?:[\w./-]{0,60}\w)?)(?:\\?['\"]|\*\*)?[ \t]{0,4}(?::=|=>|=|:)(?:\*\*)?[ \t]{0,4}"
    r"(?:[rbuf]{0,2}\\?['\"])?(?=(?P<value>[\w~.+/=!@#$%^&*|:-]{8,}))"  # which may hold names and values itself
)
_GIVEN = re.compile(  # environ["NAME"] = "v", setdefault("NAME", "v"), ("--name", default="v"), ENV NAME v, --name v
    # <NAME>v, <name>NAME</name><value>v, key="NAME" value="v"
    r"(?:(?<!\w)(?!name>)(?P<name>[A-Za-z][\w.-]{0,60})"
    r"(?:\\?['\"](?:\][ \t]{0,4}(?:\|\||\?\?)?=|,|[ \t]{1,4}value=)[^\n'\"]{0,60}\\?['\"]|(?:</name>\s{0,9}<value)?>)"
    r"|(?:--?|\b(?:ENV|ARG|LABEL|export|setenv|set)[ \t]{1,4})(?P<word>[A-Za-z][\w.-]{0,60})[ \t]{1,4}\\?['\"]?)"
    r"(?=(?P<value>[\w~.+/=!@#$%^&*|:-]{8,}))"
)
_SAID = re.compile(  # netrc's `password v`, `tool login v`, connect("user", "v")
    r"\b(?P<name>password|login)(?:[ \t]{1,4}--(?!user)[\w-]+){0,3}[ \t]{1,4}(?P<value>[\w~+=!@#%^&*-]{10,})"
    r"|\b(?P<call>login|connect|authenticate)\([^()\n]{0,120}?['\"](?P<word>[\w~+=!@#%^&*-]{10,})['\"]"
)
_WORD = re.compile(r"[A-Za-z0-9_~.+/=!|:-]{20,}")
_FORM = re.compile(r"&[A-Za-z]\w*=")
_LETTER, _DIGIT = re.compile(r"[A-Za-z]"), re.compile(r"[0-9]")
_VERSION = re.compile(r"[A-Za-z]{6,}[_-]?\d{1,4}$|[_.-][A-Za-z]{4,}[_.-]")
_NAME_OF_WORDS = re.compile(
    r"(?=.*[a-z]{4}.*[_.-].*[a-z]{4})[a-z]+\d{0,4}(?:[_.-](?:[a-z]*\d{0,4})){2,}|[a-z]{3,}(?:[_.-][a-z]+)*(?:[_.-]\d{1,4})+"
    r"|[a-z]{3,}(?:\.[a-z_]\w{0,19})+|[\w-]+\.[a-z]{2,5}"
)
"""Such as ``eval_f1_macro_top5``, ``customer_id_2024``, ``torch.float8_e4m3fn`` and ``results2B.db``."""
_NO_SECRET = re.compile(r"pk[_-](?:live|test|lf)|.*(?:SHA|AES|RSA)[_-]?\d{2,3}")
"""Tokens that are public, and names of algorithms."""
_DIGITS = re.compile(r"[0-9]+")
_WORDS = re.compile(r"[A-Z][a-z]{3,}|[a-z]{10,}")
_RUN = re.compile(r"[A-Za-z0-9]+")
_HEX = re.compile(r"(?i)(?:0x)?[0-9a-f]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TOKEN = re.compile(
    r"(?<![\w/.-])[A-Za-z][A-Za-z0-9]{0,14}(?:[_.~:-][A-Za-z0-9]{1,14}){0,5}?[_.~-](?P<run>[A-Za-z0-9]{16,})[\w~+/=!|.-]*"
)
_QUOTED = re.compile(r"(?P<quote>\\?['\"])(?P<run>[A-Za-z0-9]{20,}={0,2}|[\w+/-]{40,100}={0,2})(?P=quote)")
_PASSWORD = (  # in English, German, Dutch, French, Spanish and Portuguese
    r"passw|passphrase|pwd|kennwort|wachtwoord|contrase|(?:pass|psk|pw|(?<![a-z])(?:passe|mdp|senha))(?![a-z])"
)
_KEY_NAME = re.compile(
    rf"{_NAME}|key|auth|bearer|cookie|session|\bsas\b|dsn|apikey|access|login|{_PASSWORD}", re.IGNORECASE
)
PASSWORD_NAME = re.compile(_PASSWORD, re.IGNORECASE)
_PLACEHOLDER = re.compile(
    r"(?i)example|placeholder|your|dummy|fake|changeme|change[_ -](?:me|this|it)|redacted"
    r"|not?[_ -](?:key|needed|required|used|set)|xxxx|0{9}|<|\{\{|\}\}|^null\b|\*\*\*|\.\.\.|%s"
)
_NO_PASSWORD = re.compile(  # names of one, and references such as var.db_password
    r"(?i)(?:(?:my|the|some|test|mock|sample|default)[_-]?)*"
    r"(?:(?:password|passwd|passw|pass|pwd|pw|secret|token|key|user(?:name)?)[_-]?)+\d{0,4}$|[a-z_]+(?:\.[a-z_]+)+$|arn:aws"
    r"|[a-z_-]{0,10}test(?:ing)?(?:[_-]\d{1,4})?$"
)
_TOLD = re.compile(
    r"(?i)(?P<name>[\w.-]*(?:secret|token|passw|passphrase|pwd|api_?key|access_?key|credential)[\w-]*['\"]?\s?(?:=|:|=>)\s?['\"]?)"
    r"(?!\*\*\*)[^\s'\",;)}\]]{4,}"
)
_HASHES = (
    r"sha\d|md5|hash|digest|checksum|integrity|commit|revision|etag|fingerprint|uuid|guid"
    r"|(?:pub(?:lic|lishable)?|site)[_-]?key"
)
_HASH_NAME = re.compile(
    rf"(?i){_HASHES}|kms|(?:cache|experiment|gpg|recv)[_-]?keys?"
    r"|(?:name|level|method|mode|type|policy|format|field|class|[_-]id|(?<=[a-z])Id)$"
)
_IS_ID = re.compile(rf"(?i)(?:\b|_)(?:id|[\w-]*(?:{_HASHES})[\w-]*)\\?['\"]?\]?\s{{0,4}}(?:=|:|\()\s{{0,4}}$")
"""Before what is quoted: it is called an identifier or a hash."""


def is_random(text: str, least: int = 16) -> bool:
    """Whether a text looks random: long, of mixed and unordered character classes.

    Args:
        text: A word.
        least: Minimum length.

    """
    if len(text) < least:
        return False
    digits, rest = _DIGITS.findall(text), _WORDS.sub("", text)
    if sum(map(len, digits)) < 2 or len(rest) < len(text) / 2 or text.isdigit():
        return False
    if text == text.lower() and len(digits) < 3:  # a name with a version
        return False
    entropy = -sum(n / len(text) * math.log(n / len(text), 2) for n in Counter(text).values())
    return _changes(_kinds(text)) >= 0.25 * len(text) and entropy >= 3.0


def known_secrets(text: str) -> "Iterator[tuple[int, int, str]]":
    """Begin, end and kind of strings that match a secret's pattern, whatever precedes them."""
    for kind, pattern in FORMATS:
        for match in pattern.finditer(text):
            value = "value" if "value" in pattern.groupindex else 0
            if not is_placeholder(match.group(value)):
                yield match.start(value), match.end(value), kind
    for pattern in (_TOKEN, _QUOTED):
        for match in pattern.finditer(text):
            run = match.group("run").rstrip("=")
            if is_random(run) and not _HEX.fullmatch(run.replace("-", "")) and not _is_called_otherwise(text, match):
                yield match.start(), match.end(), "random word"


def named_secrets(text: str) -> "Iterator[tuple[int, int, str]]":
    """Begin, end and kind of random-looking values after a secret-like name."""
    for match in [*_ASSIGNED.finditer(text), *_GIVEN.finditer(text)]:
        groups = match.groupdict()
        name, value = groups["name"] or groups["word"], groups["value"]
        is_part = text[match.start() - 1 : match.start()] == ":" and "=" not in match.group()  # as of an ARN
        if not is_part and is_named_secret(name, value):
            yield match.start("value"), match.end("value"), "value of " + name
    for match in _SAID.finditer(text):
        value = "value" if match.group("value") else "word"
        if is_key(match.group(value)) or is_password(match.group(value)):
            yield match.start(value), match.end(value), "value of " + (match.group("name") or match.group("call"))


def is_named_secret(name: str, value: str) -> bool:
    """Whether a value looks like a secret, given the name of what has it."""
    value = _FORM.split(value)[0]
    is_one = is_key(value) or (PASSWORD_NAME.search(name) and is_password(value))
    return bool(is_one and _KEY_NAME.search(name) and not _HASH_NAME.search(name))


def redacted(text: str, environment: "Mapping[str, str]") -> str:
    """``text`` with asterisks for secrets, and for other random-looking strings, erring on the side of masking.

    Args:
        text: Text such as an exception and its traceback.
        environment: The values of variables with secret-like names are masked in any case, and those of such names in
            variables that hold JSON, as the hyperparameters do.

    """
    values = {form for value in _secret_values(environment) if len(value) >= _SHORTEST for form in _written(value)}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, MASK)
    text = _TOLD.sub(lambda match: match.group("name") + MASK, text)
    spans = [*known_secrets(text), *named_secrets(text)]
    spans += [(m.start(), m.end(), "") for m in _WORD.finditer(text) if _is_noise(m.group())]
    parts, last = [], 0
    for begin, end, _ in sorted(spans):
        if begin >= last:
            parts += [text[last:begin], MASK]
        last = max(last, end)
    return "".join([*parts, text[last:]])


def _secret_values(environment: "Mapping[str, str]") -> "Iterator[str]":
    for name, value in environment.items():
        is_secret = bool(TELLING_NAME.search(name))
        if is_secret:
            yield value
        if value[:1] in ("{", "["):
            try:
                yield from _secrets_in(json.loads(value), is_secret)
            except (ValueError, RecursionError):  # not JSON
                continue


def _secrets_in(content: object, is_secret: bool) -> "Iterator[str]":
    """Texts in the content of a JSON file, if they or what contains them has a secret-like name."""
    if isinstance(content, dict):
        for name, value in content.items():
            yield from _secrets_in(value, is_secret or bool(TELLING_NAME.search(name)))
    elif isinstance(content, list):
        for value in content:
            yield from _secrets_in(value, is_secret)
    elif isinstance(content, str) and is_secret:
        yield content


def _written(value: str) -> "set[str]":
    """A value as messages quote it: as it is, as Python and JSON write it, and as part of a URL."""
    forms = {value, repr(value)[1:-1], json.dumps(value)[1:-1]}
    return forms | {
        quoted(value, safe, None, "surrogateescape") for quoted in (quote, quote_plus) for safe in ("", "/")
    }


def is_placeholder(value: str) -> bool:
    """Whether a text stands for a secret: a word such as ``your-token``, a reference, or a few letters repeated."""
    return bool(_PLACEHOLDER.search(value) or _NO_PASSWORD.match(value)) or len(set(value)) < 5


def is_password(value: str) -> bool:
    """Whether a text looks like a generated password: letters of both cases and digits, unordered."""
    kinds, rest = _kinds(value), _WORDS.sub("", value)
    if len(value) < 10 or not {"a", "A", "0"} <= set(kinds) or is_placeholder(value) or value.count("/") > 1:
        return False
    if _NAME_OF_WORDS.fullmatch(value):
        return False
    return _changes(kinds) >= 0.25 * len(value) and len(rest) >= len(value) / 2


def _kinds(text: str) -> "list[str]":
    return ["0" if c.isdigit() else "A" if c.isupper() else "a" if c.islower() else "-" for c in text]


def _changes(kinds: "list[str]") -> int:
    return sum(1 for index in range(1, len(kinds)) if kinds[index] != kinds[index - 1])


def _is_called_otherwise(text: str, match: "re.Match[str]") -> bool:
    """Whether a random word is a placeholder, a name of many parts, or called a hash or an identifier."""
    run = match.group("run")
    is_hash = _HASH_NAME.match(match.group().lstrip("\\'\""))
    is_hash = is_hash or _NO_SECRET.match(match.group().lstrip("\\'\""))
    if is_placeholder(match.group()) or is_hash or len(_RUN.findall(run)) > 2 + len(run) / 16:
        return True
    return bool(_IS_ID.search(text, max(0, match.start() - 40), match.start()))


def is_key(value: str) -> bool:
    """Whether a text looks like a generated key or token, rather than like a name, a path or a version."""
    value = value.rstrip("=").strip(".")
    parts = value.count("/") + 1
    if is_placeholder(value) or (parts > 4 and len(value) / parts < 24) or _NAME_OF_WORDS.fullmatch(value):  # or a path
        return False
    if _HEX.fullmatch(value):
        return len(value) >= 16 and len(set(value)) >= 8
    letters, digits = len(_LETTER.findall(value)), len(_DIGIT.findall(value))
    is_plain = letters + digits >= len(value) - 2
    if is_random(value, 14) or (len(value) >= 20 and is_plain and _is_unordered(value)):
        return True
    return is_plain and letters >= 6 and digits >= 3 and len(value) >= 15 and not _VERSION.search(value)


def _is_unordered(value: str) -> bool:
    """Whether a text has letters of both cases that change as in no word or name, with few digits or none."""
    kinds, rest = _kinds(value), _WORDS.sub("", value)
    return {"a", "A"} <= set(kinds) and _changes(kinds) >= 0.35 * len(value) and len(rest) >= 0.6 * len(value)


def _is_noise(word: str) -> bool:
    return any(is_random(run, 20) or (len(run) >= 32 and _HEX.fullmatch(run)) for run in _RUN.findall(word))
