# SPDX-License-Identifier: Apache-2.0
"""Formats of secrets that providers and programs publish.

As :mod:`lightning_driver`: standard library only, Python 3.6.
"""

import re

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

FORMATS = tuple(
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
"""Kinds and patterns, whatever the variable's name is; the secret is the group ``value``, if there is one."""
