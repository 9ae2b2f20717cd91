# SPDX-License-Identifier: Apache-2.0
"""Kinds of secrets: files by name, and tokens by their published format.

The tokens are drawn anew each time: none is in this repository.

Names: the tools' documentation (AWS, gcloud, az, docker, kubectl, terraform, pip, npm, gh, psql, mlflow, wandb, ...),
GitHub's templates for ``.gitignore``, OpenSSH, GnuPG.
Formats: the rules of gitleaks and CredSweeper and GitHub's list of supported secrets, by name.
"""

import random
import re
import string
from pathlib import Path

NAMES = """
.env .env.local .env.production .env.development.local prod.env production.env .envrc env.local
dotenv .flaskenv secrets.env
.aws/credentials .aws/config .aws/sso/cache/0a1b.json credentials credentials.csv new_user_credentials.csv rootkey.csv
admin_accessKeys.csv aws-credentials.json .boto boto.cfg .s3cfg rclone.conf .elasticbeanstalk/config.yml
application_default_credentials.json service_account.json service-account-prod.json my-project-sa.json gcp-key.json
gcloud-service-key.json client_secret_123.apps.googleusercontent.com.json
firebase-adminsdk-x1y2.json google-services.json
GoogleService-Info.plist .config/gcloud/credentials.db .config/gcloud/access_tokens.db legacy_credentials
azureauth.json azureProfile.json accessTokens.json .azure/msal_token_cache.json
msal_token_cache.bin site.publishsettings
.oci/config oci_api_key.pem openrc.sh project-openrc.sh clouds.yaml .config/doctl/config.yaml
.docker/config.json docker-config.json .dockercfg .dockerconfigjson .pypirc pypirc .netrc _netrc
netrc .npmrc .yarnrc .yarnrc.yml
pip.conf pip.ini .pip/pip.conf .condarc nuget.config .m2/settings.xml settings-security.xml
gradle.properties .gem/credentials
.cargo/credentials.toml .composer/auth.json auth.json .git-credentials .gitconfig
.config/gh/hosts.yml hosts.yml .config/hub
.kube/config kubeconfig kubeconfig.yaml prod.kubeconfig admin.conf kubelet.conf .helm/repository.yaml
terraform.tfstate terraform.tfstate.backup prod.tfvars terraform.tfvars.json plan.tfplan .terraformrc terraform.rc
.terraform/terraform.tfstate .terraform.d/credentials.tfrc.json .vault-token vault-token
vault_pass.txt .vault_password
ansible_vault_pass Pulumi.prod.yaml .htpasswd htpasswd shadow passwd master.key credentials.xml sftp-config.json
FileZilla.xml sitemanager.xml winscp.ini wp-config.php krb5.keytab
.ssh/id_rsa .ssh/config id_rsa ID_RSA id_rsa.bak id_dsa id_ecdsa id_ed25519 id_ed25519_sk
deploy_rsa deploy_ed25519 key.pem KEY.PEM
server.key Server.KEY private.key tls.key cert.p12 CERT.PFX store.jks app.keystore app.truststore
host.ppk AuthKey_ABC.p8 x.bcfks
private_key.txt secret.asc backup.gpg secring.gpg .gnupg/private-keys-v1.d/0A.key key.agekey
age.age jwt.jwk office.ovpn wg0.conf
login.keychain login.keychain-db vault.kdbx vault.kdb passwords.txt passwords.csv password.txt export.1pif wallet.dat
authorized_keys known_hosts ssh_host_rsa_key
.pgpass pgpass pgpass.conf .my.cnf my.cnf .mylogin.cnf .mongorc.js redis.conf pg_service.conf
dump.sql backup.sql.gz db.sqlite3
app.db users.dump dump.rdb backup.sqlite
.kaggle/kaggle.json kaggle.json .huggingface/token .cache/huggingface/token hf_token hf_token.txt
token token.txt token.json
stored_tokens .mlflow/credentials mlflow_credentials.ini .config/wandb/settings wandb-settings
wandb/settings .comet.config
clearml.conf .openai_api_key openai_api_key.txt api_key api_keys.json apikey.txt api-key.txt
anthropic_token.txt slack_token
.streamlit/secrets.toml secrets.toml secrets.yaml secret.json my-secrets.yaml db_secret.yml keys/prod.txt secrets/db
credentials/prod.ini service.secret app.secrets my_credentials.yaml creds.json
.bash_history .zsh_history .python_history .psql_history .mysql_history .node_repl_history
.ipython/profile_default/history.sqlite
fish_history .viminfo .lesshst shell_history train.log nohup.out core core.1234 heap.hprof trace.pcap
.git/config .hg/hgrc .svn/entries .vscode/settings.json .idea/dataSources.xml .settings
.ipynb_checkpoints/a.ipynb explore.ipynb
.train.py.swp train.py~ config.yaml.bak settings.old config.orig #notes#
Cookies cookies.sqlite cookies.txt key4.db logins.json signons.sqlite
.jupyter/jupyter_server_config.json jupyter_notebook_config.json home.tar.gz home.zip backup.tar project.7z
databricks.cfg adc.json ngrok.yml key.txt keys.txt ssh_key sshkey.txt ssh-key kaggle(1).json connections.toml
mnemonic.txt
seed_phrase.txt wallet.json UTC--2020-01-01T00-00-00.000Z--0a1b snowsql.cnf tailscaled.state s3cmd.ini openai_key
wandb_key.txt token_cache.bin lakectl.yaml local.settings.json appsettings.Development.json github_pat.txt ghp.txt
kube.config kube_config config.kube cluster.rkestate gha-creds-0a1b2c3d.json .databrickscfg .sentryclirc .s3fs-passwd
env.production prod.env.json dev.vars odbc.ini cqlshrc profiles.yml mcp.json claude_desktop_config.json hex.config
bootstrap-kubelet.conf talosconfig k3s.yaml prod-kubeconfig.yml cluster.kubeconfig.yaml auth.toml default.credential
linode-cli vultr-cli.yaml confCons.xml msmtprc muttrc key.properties keystore.properties solana-id.json wallet.seed
modal.toml oauth2client.json oauth.json aws-keys.json pass.txt logins.csv my_login.yaml secret_key.txt api_tokens.json
bearer.txt jwt.txt slack_webhook.txt openai_api.txt anthropic_key.txt db_password.txt docker_password.txt
connection_string.txt vault-keys.json unseal.json session.har recovery-codes.txt github-backup-codes.txt
1password-export.csv bitwarden_export.json lastpass.csv chrome_passwords.csv
""".split()  # noqa: SIM905
NAMES += ["Login Data", "aws keys.csv", "credentials (1).csv", ".env copy", "id_rsa - Copy", "service account.json"]
"""Files that must stay, whatever is in them."""

HARMLESS = """
train.py model/net.py config.yaml config.json tokenizer.json tokenizer_config.json
special_tokens_map.json added_tokens.json
vocab.txt vocab.json merges.txt requirements.txt setup.cfg pyproject.toml README.md LICENSE
Makefile Dockerfile tokens.txt
id_rsa_docs.md .env.example .env.sample .env.template id_rsa.pub secrets.py credentials.py
private/config.yaml core/layers.py
boto/client.py token/lexer.py data/labels.csv configs/keys.yaml passwords.md environment.yml env.py
keyboard.json tokenization.py
launch.sh kernels/fused.cu kernels/fused.cpp kernels/fused.h schema.proto index.html style.css
grammar.ebnf poetry.lock uv.lock
package-lock.json spiece.model figure.png library.so
token_counts.txt passages.json authors.txt keyword_list.txt seeds.yaml prompt_keys.yaml keymap.json oauth.py login.py
password_strength.py secret_sauce.py ds_config_zero3.json accelerate_config.yaml conda_env.yml gpu.env.yaml
""".split()  # noqa: SIM905
"""Files that must go."""

_HEX, _LOWER = "0123456789abcdef", string.ascii_lowercase + string.digits
_UPPER, _MIXED = string.ascii_uppercase + string.digits, string.ascii_letters + string.digits

FORMATS = {
    # By their prefix: (prefix, characters, how many).
    **{
        name: (prefix, letters, count)
        for name, prefix, letters, count in (
            ("aws access key", "AKIA", _UPPER, 16), ("aws temporary key", "ASIA", _UPPER, 16),
            ("bedrock", "ABSK", _MIXED, 110),
            ("gcp api key", "AIza", _MIXED, 35), ("google client secret", "GOCSPX-", _MIXED, 28),
            ("google oauth", "ya29.", _MIXED, 60),
            ("github", "ghp_", _MIXED, 36), ("github oauth", "gho_", _MIXED, 36), ("github app", "ghs_", _MIXED, 36),
            ("github refresh", "ghr_", _MIXED, 36), ("github fine-grained", "github_pat_", _MIXED, 82),
            ("gitlab", "glpat-", _MIXED, 20), ("gitlab runner", "glrt-", _MIXED, 20),
            ("gitlab trigger", "glptt-", _HEX, 40),
            ("gitlab deploy", "gldt-", _MIXED, 20), ("gitlab feature flag", "glffct-", _MIXED, 20),
            ("hugging face", "hf_", string.ascii_letters, 34), ("openai project", "sk-proj-", _MIXED, 74),
            ("openai", "sk-", _MIXED, 48), ("anthropic", "sk-ant-api03-", _MIXED, 93), ("groq", "gsk_", _MIXED, 52),
            ("replicate", "r8_", _MIXED, 37), ("together", "tgp_v1_", _MIXED, 43), ("nvidia", "nvapi-", _MIXED, 64),
            ("perplexity", "pplx-", _MIXED, 48), ("openrouter", "sk-or-v1-", _HEX, 64), ("xai", "xai-", _MIXED, 80),
            ("pinecone", "pcsk_", _MIXED, 69), ("langsmith", "lsv2_pt_", _HEX, 43), ("wandb v1", "wandb_v1_", _MIXED, 77),
            ("llama cloud", "llx-", _MIXED, 48), ("runpod", "rpa_", _UPPER, 46), ("cerebras", "csk-", _LOWER, 48),
            ("slack bot", "xoxb-1234567890-1234567890123-", _MIXED, 24), ("slack user", "xoxp-1234567890-", _MIXED, 32),
            ("slack app", "xapp-1-A0123456789-1234567890123-", _HEX, 64), ("stripe", "sk_live_", _MIXED, 24),
            ("stripe restricted", "rk_live_", _MIXED, 24), ("square", "sq0atp-", _MIXED, 22),
            ("shopify", "shpat_", _HEX, 32),
            ("twilio", "SK", _HEX, 32), ("sendgrid", "SG.", _MIXED, 66), ("mailersend", "mlsn.", _MIXED, 64),
            ("sendinblue", "xkeysib-", _HEX, 64), ("npm", "npm_", _MIXED, 36),
            ("pypi", "pypi-AgEIcHlwaS5vcmc", _MIXED, 80),
            ("rubygems", "rubygems_", _HEX, 48), ("crates.io", "cio", _MIXED, 32), ("clojars", "CLOJARS_", _LOWER, 60),
            ("docker hub", "dckr_pat_", _MIXED, 27), ("artifactory", "AKCp", _MIXED, 69),
            ("databricks", "dapi", _HEX, 32),
            ("digitalocean", "dop_v1_", _HEX, 64), ("linode", "lin_api_", _MIXED, 40), ("pulumi", "pul-", _HEX, 40),
            ("doppler", "dp.pt.", _MIXED, 43), ("vault", "hvs.", _MIXED, 95), ("vault batch", "hvb.", _MIXED, 140),
            ("grafana", "glsa_", _MIXED, 41), ("new relic", "NRAK-", _UPPER, 27), ("postman", "PMAK-", _HEX, 59),
            ("notion", "ntn_", _MIXED, 46), ("figma", "figd_", _MIXED, 40), ("airtable", "patA1b2C3d4E5f6G7.", _HEX, 64),
            ("prefect", "pnu_", _MIXED, 36),
            ("supabase", "sbp_", _LOWER, 40), ("planetscale", "pscale_tkn_", _MIXED, 43), ("neon", "napi_", _MIXED, 64),
            ("render", "rnd_", _MIXED, 28), ("posthog", "phx_", _MIXED, 43), ("sentry", "sntryu_", _HEX, 64),
            ("atlassian", "ATATT3", _MIXED, 180), ("bitbucket", "ATCTT3", _MIXED, 180),
            ("dynatrace", "dt0c01.", _UPPER, 88),
            ("alibaba", "LTAI", _MIXED, 20), ("age", "AGE-SECRET-KEY-1", "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58),
            ("1password", "ops_eyJ", _MIXED, 250), ("buildkite", "bkua_", _LOWER, 40),
            ("circleci", "CCIPAT_", _MIXED, 60),
            ("cloudsmith", "csa_", _MIXED, 36), ("easypost", "EZAK", _LOWER, 54),
            ("flutterwave", "FLWSECK_TEST-", _HEX, 32),
            ("infracost", "ico-", _MIXED, 32), ("prefix of one's own", "acme_prod_", _MIXED, 32),
            ("tailscale", "tskey-api-", _MIXED, 30), ("tavily", "tvly-", _MIXED, 32), ("sonar", "sqp_", _HEX, 40),
            ("sourcegraph", "sgp_", _HEX, 40), ("aws session", "IQoJb3JpZ2luX2VjE", _MIXED, 300),
            ("amazon mws", "amzn.mws.", _HEX, 32), ("mailgun", "key-", _HEX, 32), ("firecrawl", "fc-", _HEX, 32),
            ("deepseek", "sk-", _HEX, 32), ("elevenlabs", "sk_", _HEX, 48), ("tencent", "AKID", _MIXED, 32),
            ("volcengine", "AKLT", _MIXED, 40), ("google refresh", "1//0", _MIXED, 98), ("github app v1", "v1.", _HEX, 40),
            ("fireworks", "fw_", _MIXED, 22), ("jina", "jina_", _MIXED, 54), ("netlify", "nfp_", _MIXED, 36),
            ("typeform", "tfp_", _MIXED, 44), ("contentful", "CFPAT-", _MIXED, 43),
            ("braintree", "access_token$production$" + "0f1e2d3c4b5a6978$", _HEX, 32), ("wakatime", "waka_", _HEX, 36),
            ("riot games", "RGAPI-", _HEX, 36), ("wundergraph", "cosmo_", _HEX, 32), ("supabase v0", "sbp_v0_", _HEX, 40),
            ("doppler cli", "dp.ct.", _MIXED, 40), ("defined networking", "dnkey-", _UPPER, 53),
            ("docker organization", "dckr_oat_", _MIXED, 32), ("dynatrace oauth", "dt0s01.", _UPPER, 88),
            ("instagram", "IGQVJ", _MIXED, 140), ("sentry organization", "sntrys_eyJ", _MIXED, 120),
            ("square secret", "sq0csp-", _MIXED, 43), ("terraform", "0f1E2d3C4b5A6g.atlasv1.", _MIXED, 60),
            ("entra secret", "a1B8Q~", _MIXED, 34), ("dropbox", "sl.", _MIXED, 135),
            ("facebook app", "123456789012345|", _MIXED, 27), ("paseto", "v4.local.", _MIXED, 80),
            ("paserk", "k4.secret.", _MIXED, 86), ("mailgun signing", "0f1e2d3c4b5a69788796a5b4c3d2e1f0-1234abcd-", _HEX, 8),
        )
    },
    # By the name before it only.
    **{
        name: ("", letters, count)
        for name, letters, count in (
            ("aws_secret_access_key", _MIXED, 40), ("wandb_api_key", _HEX, 40), ("azure_client_secret", _MIXED, 40),
            ("datadog_api_key", _HEX, 32), ("cohere_api_key", _MIXED, 40), ("mistral_api_key", _MIXED, 32),
            ("comet_api_key", _MIXED, 25),
            ("kaggle_key", _HEX, 32), ("neptune_api_token", _MIXED, 120), ("clearml_secret_key", _MIXED, 50),
            ("auth_token", _LOWER, 32),
            ("session_secret", _HEX, 64), ("signing_key", _MIXED, 43), ("encryption_key", _HEX, 64),
            ("db_password", _MIXED, 16),
            ("access_token", _LOWER, 40), ("client_secret", _MIXED, 32), ("mapbox_secret_token", _MIXED, 40),
            ("heroku_api_key", _HEX, 36), ("algolia_api_key", _LOWER, 32), ("storage_account_key", _MIXED, 88),
        )
    },
}  # fmt: skip


def drawn(kind: str) -> str:
    """A token of that kind, the same each time."""
    prefix, letters, count = FORMATS[kind]
    draw = random.Random(kind)
    while True:  # a few draws have no digit
        found = "".join(draw.choice(letters) for _ in range(count))
        if letters == string.ascii_letters or sum(one.isdigit() for one in found) >= min(4, count // 6):
            return prefix + found


_DATA = Path(__file__).parents[1] / "data"
_KINDS = {
    "B": _MIXED + "-_", "D": string.digits, "H": _HEX, "L": _LOWER, "M": _MIXED, "P": _MIXED + "+/",
    "T": string.ascii_lowercase + "234567", "U": _UPPER, "W": string.ascii_letters,
}  # fmt: skip


def filled(template: str, seed: int = 0) -> str:
    """A template with ``{M40}`` as 40 letters and digits, and so on, the same for the same seed."""
    draw = random.Random(f"{template} {seed}")

    def one(match: re.Match[str]) -> str:
        kind, count = match[1], int(match[2])
        while True:  # a few draws have no digit
            found = "".join(draw.choice(_KINDS[kind]) for _ in range(count))
            if count < 8 or kind == "W" or sum(map(str.isdigit, found)) >= min(3, count // 8):
                return found

    return re.sub(r"\{([A-Z])(\d+)\}", one, template)


def _texts(name: str) -> list[tuple[str, str]]:
    """Name of each file in one of data, and its template."""
    parts = re.split(r"^## (.+)\n", (_DATA / name).read_text(), flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


TOKENS = (_DATA / "secret_tokens.txt").read_text().splitlines()
"""Templates of published formats (gitleaks' rules, GitHub's partners, the providers), secret wherever they stand."""

TEXTS = _texts("secret_texts.txt")
"""Secrets as they stand in tools' files, commands and programs: name of the file, template."""

INNOCENT = _texts("innocent_texts.txt")
"""What is none: hashes, identifiers, lock files, placeholders, references."""

_BEGIN = "-----BEGIN "
SHAPES = {
    "rsa key": f"{_BEGIN}RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\n-----END RSA PRIVATE KEY-----",
    "openssh key": f"{_BEGIN}OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXkt\n-----END OPENSSH PRIVATE KEY-----",
    "pgp key": f"{_BEGIN}PGP PRIVATE KEY BLOCK-----\n\nlQOYBF\n-----END PGP PRIVATE KEY BLOCK-----",
    "encrypted key": f"{_BEGIN}ENCRYPTED PRIVATE KEY-----\nMIIFHD\n-----END ENCRYPTED PRIVATE KEY-----",
    "putty key": "PuTTY-User-Key-File-3: ssh-rsa\nEncryption: none",
    "postgres": "postgresql://admin:hunter" + "2xyz@db.internal:5432/app",
    "mongo": "mongodb+srv://root:" + "s3cr3tpw@cluster0.mongodb.net",
    "redis": "redis://:" + "p4ssw0rdx@cache:6379/0",
    "package index": "--index-url https://user:" + "h8Gf5tRw@packages.example.org/simple",
    "git with a token": "git clone https://" + "a1B2c3D4e5F6g7H8i9J0k1L2@github.com/o/r",
    "azure storage": "DefaultEndpointsProtocol=https;AccountName=a;AccountKey="
    + "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6",
    "azure bus": "Endpoint=sb://n.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey="
    + "q1W2e3R4t5Y6u7I8o9P0a1S2",
    "sql server": "Server=db;Database=x;User Id=sa;Password=" + "Str0ngPw_9",
    "slack webhook": "https://hooks.slack.com/services/" + "T00000000/B00000000/aBcDeFgHiJkLmNoPqRsTuVwX",
    "discord webhook": "https://discord.com/api/webhooks/" + "123456789012345678/aBcDeFgHiJkLmNoPqRsTuVwX0123456789",
    "telegram": "bot = Bot('" + "123456789:AA" + "Hd3kq9Zx_Lw8vB2nM5rT7yU1iO4pA6sDf" + "')",
    "discord": "client.run('" + "MTk4NjIyNDgzNDcxOTI1MjQ4" + ".Cl2FMQ." + "ZnCjm1XVW7vRze4b7Cq4se7kKWs'" + ")",
    "mailchimp": "Client('" + "0f1e2d3c4b5a69788796a5b4c3d2e1f0" + "-us12')",
    "asana": "Client('" + "1/1234567890123456:" + "0f1e2d3c4b5a69788796a5b4c3d2e1f0" + "')",
    "launchdarkly": "init('" + "sdk-" + "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0" + "')",
    "hubspot": "init('" + "pat-na1-" + "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0" + "')",
    "ollama": "init('" + "0f1e2d3c4b5a69788796a5b4c3d2e1f0" + ".aB3dE5gH7jK9mN1pQ2rS4tU6" + "')",
    "sas": "https://a.blob.core.windows.net/c?sv=2022&sig=" + "a1B2c3D4e5F6g7H8i9J0%2Bk%3D",
    "presigned": "https://b.s3.amazonaws.com/k?X-Amz-Signature=" + "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c",
    "jwt": "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0." + "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "key in base64": "LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQ" + "pNSUlFcEFJQkFBS0NBUUVBNw==",
    "bearer": "curl -H 'Authorization: Bearer " + "a9f8e7d6c5b4a39281706f5e4d3c2b1a'",
    "basic": "Authorization: Basic " + "YWxhZGRpbjpvcGVuc2VzYW1l",
}
"""Texts that are secrets by their shape."""
