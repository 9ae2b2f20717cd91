# SPDX-License-Identifier: Apache-2.0
"""Decide by name and first bytes which files of a folder are source, and why the others are not.

Source is text, and binary files of the kinds listed here. Hidden files, credentials, caches, weights, data,
logs and any other binary files are not sent. The names are those of the tools' own documentation and of
GitHub's templates for ``.gitignore``.
"""

from __future__ import annotations

import codecs
from fnmatch import fnmatchcase
from pathlib import Path

CREDENTIALS = "credentials"
"""Reason for a file with credentials, which no wildcard of ``send_anyway`` includes."""

HIDDEN = "hidden"
"""Reason for a file whose name begins with a dot."""

CACHE = "cache or environment"
"""Reason for a file that a tool regenerates."""

RUN = "output of a run"
"""Reason for what a program or a simulated job has written."""

_HARMLESS = ("*.py", "*.pyi", "*.md", "*.rst", "*.pub", "*.example", "*.sample", "*.template", "*.tmpl", "*.dist")
"""Code, documentation and templates, which are not judged by other parts of their names: their text is scanned."""

_CERTIFICATES = ("*.pem", "*.crt", "*.cer")
"""Files of certificates or private keys; their content decides."""

_CREDENTIALS = (
    # environment variables
    "*.env", "*.env.json", "*.env.local", "*.env.prod*", "*.env.dev*", "*.vars", "env.local",
    "env.*.local", "env.prod*", "env.dev*", "env.stag*", "env.test*",
    "dotenv", "*.envrc", "secrets.*", "secret.*", "*.secret", "*.secrets",
    "*-secrets.*", "*_secrets.*", "*-secret.*", "*_secret.*",
    # keys
    "*.key", "*.p8", "*.p12", "*.pfx", "*.ppk", "*.jks", "*.jceks", "*.bks", "*.bcfks", "*.keystore", "*.truststore",
    "*.der", "*.kdb", "*.kdbx", "*.agekey", "*.age", "*.asc", "*.gpg", "*.pgp", "*.jwk", "*.jwks", "*.keytab",
    "*.ovpn", "*.keychain*", "*.mobileprovision", "*.wallet", "wallet.dat", "id_rsa*", "id_dsa*", "id_ecdsa*",
    "id_ed25519*", "id_xmss*", "*_rsa", "*_dsa", "*_ecdsa", "*_ed25519", "ssh_host_*", "authorized_keys*",
    "known_hosts*", "secring*", "pubring*", "trustdb*", "master.key", "wg[0-9]*.conf", "*.rdp", "*private*key*",
    "*secret[_-]key*", "*.token", "*.tokens", "*vault*pass*", "key.txt", "keys.txt", "*_key", "*-key", "*ssh*key*",
    "*mnemonic*", "*seed*phrase*", "wallet*.json", "wallet.seed", "solana*id.json", "*unseal*", "*recovery*code*",
    "*backup*code*", "key.properties", "keystore.properties", "signing.properties", "vault*key*",
    "utc--*", "tailscaled.state",
    # clouds
    "credentials", "*credentials", "*credentials*.json", "*credentials*.y*ml", "*credentials*.csv",
    "*credentials*.ini", "*credentials*.txt", "*credentials*.toml", "*credentials*.xml", "*credentials*.db",
    "*creds*", "*accesskey*.csv", "rootkey*.csv", "*access-key*", "*access_key*", "service*account*.json",
    "*-sa.json", "sa-*.json", "sa.json", "*service-account*", "gcp*key*.json", "gcloud*.json", "*-key.json",
    "*_key.json", "keyfile.json", "key.json", "client_secret*", "client-secret*", "*adminsdk*.json",
    "google-services.json", "googleservice-info.plist", "azureauth*", "azureprofile.json", "accesstokens.json",
    "msal_token_cache*", "*.publishsettings", "*.cscfg", "boto*.cfg", "boto", "s3cfg", "rclone.conf", "oci_api_key*",
    "*.credential", "oauth*.json", "linode-cli", "vultr-cli*", "aws*keys.*", "*connection*string*",
    "adc.json", "*token*cache*", "*keys.csv", "databricks.cfg", "databrickscfg*", "s3cmd*", "local.settings.json",
    "appsettings*.json", "ngrok.y*ml", "lakectl*.y*ml", "snowsql*", "connections.toml",
    "doctl*.y*ml", "openrc*", "*-openrc.sh", "clouds.y*ml", "*.boto",
    # registries, indexes and version control
    "docker*config*.json", "dockercfg", "dockerconfigjson", "netrc", "_netrc", "*.netrc", "pypirc", "*.pypirc",
    "npmrc", "*.npmrc", "yarnrc*", "pip.conf", "pip.ini", "condarc", "*.condarc", "nuget.config",
    "settings-security.xml", "gradle.properties", "git-credentials*", "gitconfig", "auth.json", "hosts.yml",
    "github_pat*", "ghp*.txt", "hex.config", "auth.toml", "auth.txt", "mcp.json", "claude_desktop_config*",
    "gem_credentials", "cargo_credentials*", "poetry_auth*",
    # clusters and infrastructure
    "*kube*config*", "config.kube", "*.rkestate", "talosconfig*", "k3s.yaml", "rke2.yaml", "bootstrap-kubelet.conf",
    "controller-manager.conf", "scheduler.conf", "kubelet.conf", "admin.conf", "*.tfstate*", "*.tfvars*", "*.tfplan",
    "terraformrc", "terraform.rc", "*.terraformrc", "vault_token*", "vault-token*", "vault.y*ml", "vault.json",
    "*.vault", "pulumi.*.y*ml", "htpasswd*", "*.htpasswd", "shadow", "passwd", "krb5.conf", "tnsnames.ora",
    "wp-config.php", "localsettings.php", "sftp*.json", "filezilla.xml", "sitemanager.xml", "recentservers.xml",
    "winscp.ini", "ws_ftp.ini", "robomongo.json", "dbeaver*", "credentials.xml", "hudson.util.secret", "web.config",
    "confcons.xml",
    "msmtprc", "muttrc", "fetchmailrc", "sasl_passwd*", "knife.rb", "ftpconfig", "ventrilo_srv.ini",
    "unattend.xml", "sysprep.*",
    # databases
    "odbc.ini", "cqlshrc", "profiles.yml", "pgpass*", "*.pgpass", "my.cnf",
    "*mylogin.cnf", "mongorc*", "redis.conf", "pg_service.conf", "mssql*.conf",
    # services of machine learning
    "kaggle*.json", "wandb*key*", "openai*key*",
    "hf_token*", "huggingface_token*", "token", "*_token", "*-token", "token.json", "token.txt",
    "stored_tokens", "token.pickle", "*_token.*", "*-token.*", "api_key*", "apikey*", "api-key*", "*_api_key*",
    "*.api_key", "*.apikey", "mlflow*credentials*", "wandb*settings", "comet.config", "clearml.conf",
    "neptune*token*", "jupyter*config*.json", "*passw*", "pass.txt", "pw.txt", "pwd.txt", "modal.toml",
    "login.*", "logins.*", "*[-_]login.*", "api?tokens*", "bearer*", "jwt.*", "*webhook*.txt", "*openai*.txt",
    "*anthropic*.txt", "1password*", "bitwarden*", "lastpass*", "*.har", "cookie.txt", "key[34].db",
    "cert[89].db", "signons*", "cookies*", "login data*", "*.1pif", "*.agilekeychain", "*.opvault", "keyring*",
    "*.pcap*",
)  # fmt: skip
"""Patterns of names of files with credentials, in lower case."""

_CREDENTIAL_FOLDERS = ("secrets", "secret", "credentials", "creds", "keys", "*.keychain", "*.gnupg")
"""Patterns of names of folders whose files count as credentials, unless they are harmless or certificates."""

_FOLDERS = {
    CACHE: (
        "venv",
        "env",
        "envs",
        "virtualenv",
        "node_modules",
        "__pycache__",
        "*.pyc",
        "*.pyo",
        "*.egg-info",
        "*.egg",
        "htmlcov",
        "site-packages",
    ),
    RUN: ("runs", "lightning_logs", "wandb", "mlruns", "mlartifacts", "outputs", "multirun"),
}
"""Reason -> patterns of names of folders, and of a few files, that are not source."""

_FILES = {
    "log": (
        "*.log", "*.log.*", "nohup.out", "*.prof", "*.nsys-rep", "*.qdrep", "*.tfevents.*", "core", "core.[0-9]*", "*.dmp",
        "*.hprof", "*.core",
    ),
    "weights": (
        "*.ckpt", "*.safetensors", "*.pt", "*.pth", "*.distcp", "*.h5", "*.hdf5", "*.keras", "*.onnx", "*.gguf",
        "*.ggml", "*.pb", "*.tflite", "*.msgpack", "*.pkl", "*.pickle", "*.joblib",
    ),
    "data": (
        "*.parquet", "*.arrow", "*.feather", "*.orc", "*.avro", "*.tfrecord*", "*.lmdb", "*.mdb", "*.db", "*.db-*",
        "*.sqlite*", "*.sql", "*.dump", "*.rdb", "*.mdf", "*.accdb",
    ),
    "archive": (
        "*.tar", "*.tgz", "*.tbz*", "*.txz", "*.gz", "*.bz2", "*.xz", "*.zst", "*.lz4", "*.zip", "*.7z", "*.rar",
        "*.jar", "*.war", "*.iso", "*.img", "*.dmg", "*.deb", "*.rpm", "*.cab",
    ),
    "history, backup or draft": (
        "*_history", "*.history", "*history.sqlite", "*.bak", "*.backup", "*.old", "*.orig", "*.rej", "*.save", "*~",
        "*.swp", "*.swo", "*.swn", "#*#", "*.tmp", "*.temp", "*.part", "*.crdownload",
    ),
    "notebook": ("*.ipynb",),
}  # fmt: skip
"""Reason -> patterns of names of files that are not source."""

_BINARY_SOURCE = (
    "*.so", "*.so.*", "*.pyd", "*.dll", "*.dylib", "*.whl", "*.model", "*.spm", "*.bpe", "*.png", "*.jpg", "*.jpeg",
    "*.gif", "*.bmp", "*.ico", "*.webp", "*.tif", "*.tiff", "*.wav", "*.flac", "*.mp3", "*.ogg", "*.npy", "*.npz",
    "*.ttf", "*.otf", "*.woff*", "*.mo", "*.cubin", "*.fatbin", "*.ptx", "*.bin", "*.pdf",
)  # fmt: skip
"""Patterns of names of binary files that belong to programs."""

DATA_REASONS = (CREDENTIALS, HIDDEN, CACHE)
"""Reasons that also apply in a folder of data."""

_MAYBE_DATA = ("*.tokens", "*.token", "*.key", "*.asc", "*.age", "*.der", "*.secret")
"""Suffixes of both keys and data, such as ``wiki.train.tokens``; the size decides."""

_DATA_TOO = ("login.*", "*[_-]login.*", "*[_-]password*")
"""Names of credentials in a source, but not in a folder of data, none of which must be lost: ``forgot_password.csv``."""

_LARGEST_KEY = 65_536
"""Maximum bytes of a file with a key or token."""

_FIRST = 65_536
"""Bytes at the beginning of a file by which its kind is judged."""

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

_PRINTED = bytes([*b"\a\b\t\n\v\f\r\x1b", *range(0x20, 0x7F), *range(0x80, 0x100)])
"""Bytes of text in an encoding such as Latin-1."""


def why_not_by_name(name: str) -> str | None:
    """Why a file of this name is not sent; None if the name gives no reason.

    Args:
        name: Path relative to the folder that is sent, with slashes.

    """
    *folders, last = name.casefold().split("/")
    is_harmless = _fits(last, _HARMLESS)
    if last.startswith(".") and not is_harmless:
        return CREDENTIALS if _fits(last.lstrip("."), _CREDENTIALS) or last.startswith(".env") else HIDDEN
    if not is_harmless and not _fits(last, _CERTIFICATES) and _is_credential(folders, last):
        return CREDENTIALS
    return next((reason for reason, patterns in (*_FOLDERS.items(), *_FILES.items()) if _fits(last, patterns)), None)


def why_not_folder(name: str) -> str | None:
    """Why a folder of this name is not sent; None if the name gives no reason."""
    last = name.casefold().rpartition("/")[2]
    if last.startswith("."):
        return HIDDEN
    return next((reason for reason, patterns in _FOLDERS.items() if _fits(last, patterns)), None)


def _is_credential(folders: list[str], name: str) -> bool:
    return _fits(name, _CREDENTIALS) or any(_fits(folder, _CREDENTIAL_FOLDERS) for folder in folders)


def why_not_data(name: str, path: Path) -> str | None:
    """Why a file in a folder of data is not sent; None if it is. Any kind of file can be data.

    Args:
        name: Path relative to the folder, with slashes.
        path: Path of the file.

    Raises:
        OSError: If it cannot be read.

    """
    folder, _, last = name.casefold().rpartition("/")
    is_word = _fits(last, _DATA_TOO) and not last.startswith(".")
    reason = why_not_by_name(f"{folder}/data" if is_word else name)
    if reason not in DATA_REASONS or (_fits(last, _MAYBE_DATA) and path.stat().st_size > _LARGEST_KEY):
        return None
    if _fits(last, _CERTIFICATES):
        return why_not_by_content(path)
    return reason


def why_not_by_content(path: Path) -> str | None:
    """Why a file whose name gives no reason is not sent; None if it is.

    Raises:
        OSError: If it cannot be read.

    """
    name = path.name.casefold()
    with path.open("rb") as file:
        head = file.read(_FIRST)
    if _fits(name, _CERTIFICATES) and not (
        b"-----BEGIN CERTIFICATE" in head and b"PRIVATE KEY" not in path.read_bytes()
    ):
        return CREDENTIALS
    if is_text(head) or _fits(name, _BINARY_SOURCE):
        return None
    return "neither text nor a known kind of binary file"


def is_text(content: bytes) -> bool:
    """Whether a file is text by its first bytes: UTF-8, UTF-16 with a byte order mark, or one byte for each character."""
    head = content[:_FIRST]
    if head.startswith(_UTF16):
        return True
    if b"\0" in head:
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        is_cut = error.start > len(head) - 4  # a character at the end of head
        return is_cut or not head.translate(None, _PRINTED)
    return True


def text_of(content: bytes) -> str:
    """The text of a file that is text."""
    return content.decode("utf-16" if content.startswith(_UTF16) else "utf-8-sig", errors="replace")


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
