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

MASK = "***"

_NAME = (
    r"secret|token(?!i[sz])|passw|passphrase|[_-]pwd|api_?key|access_?key|account_?key|private|cred(?:ential|s)"
    r"|auth_?key|signing_?key"
)
TELLING_NAME = re.compile(_NAME, re.IGNORECASE)
"""Matches names of variables or settings whose values are secrets."""

_SHORTEST = 6
"""Minimum length of a secret variable's value: shorter ones occur in texts by chance."""

_PREFIXES = (
    "A3T|AAAA[\\w-]{7}:|A{22}(?=[A-Za-z0-9%]{80})|"
    "ABSK|AGE-SECRET-KEY-1|AIza|AKCp|AKIA|ASIA|ABIA|ACCA|AQVN|ATATT|ATCTT|BBDC-|CCIPAT_|EAA[A-Z]|EXO|EZ[AT]K|"
    "FLWSECK|FlyV1 |GOCSPX-|GR1348941|HRKU-|LTAI|MDg|PMAK-|SG\\.|SWMKEY-1-|SWMTKN-1-|SharedAccessSignature|WRKA|YC[ABM]|"
    "cmVmd|dapi|eyJ|glpat-|mlsn\\.|p8e-|ya29\\.|4b1d|NRAK-|NRJS-|NRII-|1000\\.|"
    "do[a-z]_v1_|shp(?:at|ca|pa|ss)_|pul-|rubygems_|rootly_|sk-or-v1-|sntryu_|xkeysib-|lsv2_|glptt-|glffct-|shippo_|lip_|ucat_|"
    "IQoJb3JpZ2lu|amzn\\.mws\\.|tvly-|sq[apu]_|sgp_|pat-(?:na|eu)\\d-|1//0|AKID|AKLT|"
    "CLOJARS_|bedrock-api-key-|IGQV|RGAPI-|dckr_(?:pat|oat)_|dnkey-|dt0[a-z]\\d\\d\\.|"
    "figd_|glsa_|llx-|ntn_\\d|ops_eyJ|sntrys_|sq0[a-z]{3}-|tskey-|waka_|xapp-\\d|"
    "AQ\\.Ab8|AstraCS:|BSA(?=[\\w-]{27}\\b)|DO00|F[wQ]oGZXIvYXdz|GOOG1[A-Z]|KGAT_|Mid-server-|ZENKEY_|ZXlK[aM]|"
    "access-(?:sandbox|development|production)-|aio_|crsr_|dG9rOi|duffel_(?:live|test)_|e2b_|fio-u-|fm[12][ar]?_|"
    "gcntfy-|gl(?:ft|soat|imt|agent|oas|cbt)-|lin_oauth_|ls__|ovsx[ap]t?_|persona_(?:production|sandbox)_|"
    "s-s4t2(?:ud|af)-|sha256~|sk-(?:admin|helicone|lf|svcacct)-|rdme_|sb_secret_|tk-us-|xsmtpsib-|y[0-3]_Ag|zpka_|"
    "dvc_server_|sk\\.eyJ|endr\\+|VF\\.(?:DM\\.)?|rzp_(?:live|test)_|00D\\w{12}!|sec-c-|"
    "(?:rk|sk)_(?:test|live|prod|car)_|xox[a-z]-|pscale_|cog_|hv[bs]\\.|sk-ant-|sk-proj-|nvapi-|gsk_|csk-|pplx-|tgp_v1_|gh[opsur]_|github_pat_"
)
"""Prefixes of providers' tokens without a separator, or with few digits (published formats, November 2026)."""

_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

_KNOWN = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (  # followed by more than the program or sentence that names this line
            "private key",
            r"-{4,5} ?BEGIN[ \w]*(?:PRIVATE|Static) [Kk](?:EY|ey)(?: BLOCK| V1)? ?-{4,5}"
            r"(?=(?:\\[nr]|[^\w+/\\]){0,60}(?![a-z]+\b)[\w+/]{6})[\s\S]*?(?:-----END[^\n]*?-----|\Z)",
        ),
        ("private key", r"PuTTY-User-Key-File-\d[\s\S]*?(?:Private-MAC: \S+|\Z)"),
        ("password in a URL", r"\b[a-zA-Z][\w+.-]{1,20}://(?P<user>[^\s/:@'\"<>{}$]*):(?!(?P=user)@)(?P<value>[^\s/@'\"<>{}$*%(]{3,})@[\w.\[-]"),
        ("token in a URL", r"\bhttps?://(?P<value>[\w~.+=-]{20,})@[\w.-]"),
        ("Hugging Face token", r"\b(?:hf_|api_org_)[A-Za-z]{30,}"),
        (
            "webhook",
            r"\bhttps://(?:hooks\.slack\.com/\w+|hooks\.zapier\.com/hooks"
            r"|(?:[a-z]+\.)?discord(?:app)?\.com/api/webhooks)/\S{12,}",
        ),
        ("webhook", r"\bhttps://[\w.-]+webhook\.office\.com/webhookb2/\S{20,}"),
        ("signed URL", r"(?i)[?&;](?:sig|signature|x-\w+-signature|x-amz-security-token)=(?P<value>[\w%+/=-]{16,})"),
        ("JSON web token", r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}"),
        (
            "authorization header",
            r"(?i)\bauthorization['\"\]]{0,3}\s{0,4}[:=,]?\s{0,4}f?['\"]?(?:basic|bearer|token)\s+(?:['\"]\s{0,4}\+\s{0,4}['\"])?"
            r"(?P<value>(?=[^\s'\"]*\d)[\w~.+/=-]{8,})",
        ),
        ("connection string", r"(?i)\b(?:AccountKey|SharedAccessKey|SharedSecret)=(?P<value>[^;'\"\s{}()\[\]]{6,})"),
        ("connection string", r"(?i)[;?&]\s?(?:Pwd|Password)=(?P<value>[^;'\"\s{}()\[\]]{6,})"),
        ("password of a command", r"\bcurl\b[^\n]*?\s(?:-u|--user)[ =]?['\"]?[^\s:'\"]+:(?P<value>[^\s'\"${<]{6,})"),
        ("password of a command", r"\b(?:sshpass\s+-p\s*|mysql\w*\b[^\n]*?\s-p)['\"]?(?P<value>[^\s'\"${<]{6,})"),
        ("password of a command", r"\b[\w.*-]{1,80}:(?:5432|\*):[\w*-]+:[\w*-]+:(?P<value>[^\s:'\"${<]{6,})"),  # .pgpass
        ("token in a URL", rf"\bhttps?://[\w.-]+/t/(?P<value>\w\w-{_UUID})/"),  # Anaconda
        ("password's hash", r"\$(?:apr1|[156])\$(?:rounds=\d+\$)?[./\w]{1,16}\$[./A-Za-z0-9]{22,86}(?![./\w])"),
        ("password's hash", r"\$2[abxy]\$\d\d\$[./A-Za-z0-9]{53}|(?:\$argon2\w*\$v=|\bpbkdf2_sha)\d+\$\S{20,}"),
        (  # Azure's keys name their service in the middle
            "provider's token",
            r"(?<![\w+/-])[\w+/-]{32,84}(?:Az(?:Se|Fu|Ca)|ACDb|APIM|AZDO|JQQJ99|\+A(?:St|Ba|IoT|CR|EH|RC|RM|SB))"
            r"[\w+/]{4,26}={0,2}(?![\w+/=])",
        ),
        ("provider's token", r"\bA3-[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}\b"),  # 1Password
        (
            "provider's token",
            r"\b(?:(?:live|test)_(?:pub_)?[0-9a-f]{31,35}|sk_[a-z2-7]{26}|[ps]at\.[\w-]{22}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}"
            r"|oy2[a-z0-9]{43}|st\.[0-9a-f]{24}(?:\.[0-9a-f]{32}){2}|xaat-[0-9a-f-]{36}|SCW[A-Z0-9]{17}|[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk"
            r"|v1\.0-[0-9a-f]{24}-[0-9a-f]{146}|[a-z0-9]{10}msh[a-z0-9]{15}p1[a-z0-9]{6}jsn[a-z0-9]{12})\b",
        ),
        ("provider's token", rf"\b{_UUID}:[0-9a-f]{{32}}\b|\b0\.{_UUID}\.\w{{30}}:"),  # fal, Bitwarden
        ("provider's token", r"\b[a-z]{2,8}_[a-z0-9]{5,30}\.[a-z0-9]{4,6}\.acc[_-][a-z0-9-]{10,32}\.[\w+/=-]{30,}"),
        ("provider's token", r"\b\d{8,10}:AA[\w-]{33}\b"),  # Telegram
        ("provider's token", r"\b[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27,38}\b"),  # Discord
        ("provider's token", r"\b(?:(?:key|sk)[-_]|fc-)[0-9a-f]{32,64}\b|\b[0-9a-f]{24}:[0-9a-f]{64}\b"),
        ("provider's token", r"\b[0-9a-f]{32}-(?:us\d{1,2}|[0-9a-f]{8}-[0-9a-f]{8})\b"),  # Mailchimp, Mailgun
        ("provider's token", r"\bpat[A-Za-z0-9]{14}\.[0-9a-f]{64}\b"),  # Airtable
        ("provider's token", r"\b(?:SK|AC)[0-9a-f]{32}\b"),  # Twilio
        ("provider's token", r"\b[\w-]{14}\.atlasv1\.[\w-]{60,}"),  # Terraform
        ("provider's token", r"(?<![\w~.-])[\w~.-]{3}\dQ~[\w~.-]{31,34}"),  # Entra
        ("provider's token", r"\b(?:k[1-4]\.secret[\w-]*\.|v[1-4]\.(?:local|public)\.|dp\.[a-z]{2,5}\.)[\w-]{36,}"),
        ("provider's token", r"\b(?:cosmo_|sbp_(?:v0_)?)[0-9a-f]{32,40}\b"),
        ("provider's token", r"\bsl\.(?:u\.)?[\w-]{77,}"),  # Dropbox
        ("provider's token", r"\baccess_token\$(?:production|sandbox)\$\w{16}\$\w{32}"),  # Braintree
        ("provider's token", r"\b\d{15,17}\|[\w-]{27}\b"),  # Facebook
        ("private key", r"['\"]kty['\"]\s*:[^{}]*?['\"]d['\"]\s*:\s*['\"](?P<value>[\w-]{40,})"),  # JWK
        ("private key", r"LS0tLS1CRUdJTi[\w+/]*(?:UFJJVkFURS|BSSVZBVE|QUklWQVRF)[\w+/=]*"),  # in base64
        ("provider's token", r"\b\d/\d{10,}:[0-9a-f]{32}\b"),  # Asana
        ("provider's token", rf"\b(?:sdk|api|mob)-{_UUID}\b"),  # LaunchDarkly
        ("provider's token", r"\b(?:[0-9a-f]{32}\.[\w-]{24}|v1\.[0-9a-f]{40}|\d[A-Za-z0-9]{26}_[A-Za-z0-9]{21})\b"),
        ("provider's token", rf"(?<![\w/+.-])(?:{_PREFIXES})[\w~+/=!|:.-]{{12,}}"),
    )
)  # fmt: skip
"""Patterns of secrets, whatever the variable's name is."""

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
    for kind, pattern in _KNOWN:
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
