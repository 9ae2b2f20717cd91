# SPDX-License-Identifier: Apache-2.0
"""What is sent of a source folder: no secret, by name or within a text; and what is none is not refused."""

import base64
import json
import os
import random
import sysconfig
import uuid
import zipfile
from pathlib import Path

import pytest

from lightning_sagemaker.launch import Estimator, LaunchError
from lightning_sagemaker.launch.source.secret_scan import find_secrets
from lightning_sagemaker.launch.source.source_files import select_files
from tests.conftest import ROOT
from tests.launch.secret_kinds import FORMATS, HARMLESS, INNOCENT, NAMES, SHAPES, TEXTS, TOKENS, drawn, filled

DRAW = random.Random(0)
TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
DIGEST = "".join(DRAW.choice("0123456789abcdef") for _ in range(64))


def bundle(folder, **more):
    (folder / "train.py").touch()
    given = {"entry_point": "train.py", "source_dir": str(folder), "region": "us-east-1", "include_plugin": False}
    return Estimator(**given, **more).plan().bundle


def put(folder, name, content="value\n"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_names_that_stay_and_names_that_go(tmp_path):
    for folder, names in (("stay", NAMES), ("go", HARMLESS)):
        for number, name in enumerate(names):
            put(tmp_path / folder / str(number), name)  # apart: some are folders of others
    assert len(NAMES) >= 200
    stay, go = select_files(tmp_path / "stay"), select_files(tmp_path / "go")
    assert sorted(stay.taken) == []
    assert sorted(go.left_out.items()) == []
    assert len(go.taken) == len(HARMLESS)


def test_keys_under_other_names_links_and_what_is_not_text(tmp_path):
    outside = put(tmp_path, "home/notes.txt")
    source = tmp_path / "source"
    put(source, "train.py")
    put(source, "package/net.py")
    put(source, ".env")
    put(source, "ca-bundle.crt", "# roots\n-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
    put(source, "client.pem", "-----BEGIN CERTIFICATE-----\nMIIB\n" + SHAPES["rsa key"])
    put(source, "profile", b"SQLite format 3\0\1\2\3")
    put(source, "utf16.bom-less", "password".encode("utf-16-le"))
    (source / "settings.txt").symlink_to(".env")
    (source / "copy.py").symlink_to("package/net.py")
    (source / "again").symlink_to("package", target_is_directory=True)
    (source / "package" / "up").symlink_to("..", target_is_directory=True)
    (source / "home").symlink_to(outside.parent, target_is_directory=True)
    (source / "notes.txt").symlink_to(outside)
    os.link(outside, source / "linked.txt")
    os.link(source / "package" / "net.py", source / "twice.py")
    os.mkfifo(source / "pipe")
    put(source, ".aws/credentials")
    (source / "cloud").symlink_to(".aws", target_is_directory=True)
    chosen = select_files(source)
    assert set(chosen.taken) == {
        "train.py", "package/net.py", "copy.py", "again/net.py", "twice.py", "ca-bundle.crt"
    }  # fmt: skip
    assert chosen.left_out["settings.txt"] == "credentials"
    assert chosen.left_out["linked.txt"] == "hard link to a file outside the folder"
    assert chosen.left_out["cloud"] == "hidden (link to .aws)"
    assert chosen.left_out["notes.txt"] == chosen.left_out["home"] == "link out of the folder"
    assert set(chosen.left_out) >= {".env", ".aws", "client.pem", "profile", "utf16.bom-less", "pipe", "package/up"}
    named = select_files(source, ["linked.txt", ".env", ".aws/credentials", "utf16*", "*.txt"])
    assert {"linked.txt", ".env", ".aws/credentials", "utf16.bom-less"} <= set(named.taken)
    assert "notes.txt" in named.left_out


CONTEXTS = {
    "a.py": 'x = 1\n{NAME} = "{value}"\n',
    "b.yaml": "model:\n  {name}: {value}\n",
    "c.json": '{{\n  "{name}": "{value}"\n}}\n',
    "d.sh": "#!/bin/sh\nexport {NAME}={value}\n",
    "e.ini": "[default]\n{name} = {value}\n",
    "f.py": 'import os\nos.environ["{NAME}"] = "{value}"\n',
    "g.py": 'parser\nparser.add_argument("--{name}", type=str, default="{value}")\n',
    "h.py": 'headers = {{}}\nheaders.setdefault("{name}", "{value}")\n',
    "Dockerfile": "FROM scratch\nENV {NAME} {value}\n",
    "i.sh": "#!/bin/sh\ntool login --{name} {value}\n",
    "j.py": 'import tool\nclient = tool.Client("{value}")\n',
}
"""Each has the secret in its second line."""


@pytest.mark.parametrize("file", CONTEXTS)
def test_no_token_within_a_file_is_sent(file):
    missed = []
    for kind in (kind for kind, (prefix, *_) in FORMATS.items() if prefix or file != "j.py"):
        name = kind if "_" in kind else f"{kind.replace(' ', '_').replace('-', '_').replace('.', '_')}_token"
        text = CONTEXTS[file].format(name=name, NAME=name.upper().replace("'", ""), value=drawn(kind))
        if 2 not in {one.line for one in find_secrets(file, text.encode())}:
            missed.append((kind, text))
    assert missed == []


@pytest.mark.parametrize("file", ["train.py", "config.yaml", "notes.txt", "requirements.txt", "README.md"])
def test_no_shape_of_a_secret_is_sent(file):
    missed = [kind for kind, text in SHAPES.items() if not list(find_secrets(file, f"a\n# {text}\n".encode()))]
    assert missed == []


@pytest.mark.parametrize("seed", range(3))
def test_no_published_format_is_sent_without_a_name(seed):
    assert len(TOKENS) > 130
    text = "import tool\n" + "".join(f'client = tool.Client("{filled(one, seed)}")\n' for one in TOKENS)
    found = {one.line for one in find_secrets("a.py", text.encode())}
    assert [one for line, one in enumerate(TOKENS, 2) if line not in found] == []


def test_no_secret_in_the_form_of_a_tool_is_sent():
    assert len(TEXTS) > 110
    missed = [(name, text) for name, text in TEXTS if not list(find_secrets(name, filled(text).encode()))]
    assert missed == []


def test_no_secret_in_a_long_line_of_json_is_sent():
    padding = {f"layer_{index}": [index] * 10 for index in range(400)}
    for secret in ({"api_key": filled("{H40}")}, {"db": {"password": filled("{M14}")}}):
        text = "{}\n" + json.dumps({**padding, **secret, "more": padding})
        assert len(text) > 10_000
        assert [one.line for one in find_secrets("config.json", text.encode())] == [2]
    assert (
        list(find_secrets("config.json", json.dumps({"token": "a" * 9, "key_name": "b c", **padding}).encode())) == []
    )


def test_what_only_looks_like_a_secret_is_sent():
    assert len(INNOCENT) > 120
    wrong = [(name, text, list(find_secrets(name, filled(text).encode()))) for name, text in INNOCENT]
    assert [one for one in wrong if one[2]] == []


def notebook(source, outputs=()):
    cell = {"cell_type": "code", "source": source, "outputs": list(outputs), "metadata": {}, "execution_count": 1}
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1)


def test_a_finding_is_an_error_that_names_the_line_and_not_the_secret(tmp_path):
    token, key = drawn("github"), drawn("aws access key")
    put(tmp_path, "train.py")
    put(tmp_path, "config/a.yaml", f"lr: 0.1\ngithub: {token}\n")
    put(tmp_path, "b.py", f"\n\nconnect('{key}')\n")
    with pytest.raises(LaunchError, match=r"b\.py:3 .*config/a\.yaml:2 .*HINT: ") as error:
        bundle(tmp_path)
    assert token not in str(error.value)
    assert key not in str(error.value)
    with pytest.raises(LaunchError, match=r"b\.py:3") as error:
        bundle(tmp_path, send_anyway=["config/a.yaml:2"])
    assert "a.yaml" not in str(error.value)
    assert "b.py" in bundle(tmp_path, send_anyway=["config/a.yaml:2", "b.py:*"]).files
    put(tmp_path, "b.py", f"\n\nconnect('{key}')  # pragma: allowlist secret\n")
    assert "b.py" in bundle(tmp_path, send_anyway=["config/*:*"]).files


def test_notebooks_wheels_scripts_and_dependencies(tmp_path):
    source, token = tmp_path / "source", drawn("hugging face")
    picture = base64.b64encode(DRAW.randbytes(3000)).decode()
    output = {"output_type": "display_data", "metadata": {}, "data": {"image/png": picture}}
    put(source, "clean.ipynb", notebook(["x = 1\n"], [output]))
    put(source, "bad.ipynb", notebook([f'login("{token}")\n'], [output]))
    assert set(bundle(source).left_out.values()) == {"notebook"}
    assert "clean.ipynb" in bundle(source, send_anyway=["clean.ipynb"]).files
    with pytest.raises(LaunchError, match=r"bad\.ipynb:\d+"):
        bundle(source, send_anyway=["*.ipynb"])
    with zipfile.ZipFile(source / "own-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("own/a.py", "x = 1\n")
        archive.writestr("own/.env", "A=b\n")
    with pytest.raises(LaunchError, match=r"own-1\.0-py3-none-any\.whl/own/\.env:1"):
        bundle(source)
    (source / "own-1.0-py3-none-any.whl").unlink()
    put(tmp_path, "lib/a.py", f'KEY = "{token}"\n')
    with pytest.raises(LaunchError, match=r"lib/a\.py:1"):
        bundle(source, dependencies=[str(tmp_path / "lib")])
    put(tmp_path, "secrets.json")
    with pytest.raises(LaunchError, match=r"dependencies has .*secrets\.json', which is not sent: credentials"):
        bundle(source, dependencies=[str(tmp_path / "secrets.json")])
    put(tmp_path, "alone.py", f'KEY = "{token}"\n')
    with pytest.raises(LaunchError, match=r"alone\.py:1"):
        Estimator(entry_point=str(tmp_path / "alone.py"), region="us-east-1", include_plugin=False).plan()


PLAIN = {
    "config.json": json.dumps({"pad_token_id": 0, "bos_token": "<s>", "_commit_hash": DIGEST[:40]}, indent=1),
    "tokenizer.json": json.dumps({"vocab": {f"##{i:x}token{i}": i for i in range(4000)}, "merges": ["a b"] * 500}),
    "special_tokens_map.json": json.dumps({"mask_token": {"content": "<mask>"}, "unk_token": "[UNK]"}),
    "vocab.txt": "\n".join(["[PAD]", "password", "secret", "token", *(f"tok{i}" for i in range(3000))]),
    "hashes.txt": f"sha256:{DIGEST}\n{DIGEST[:40]}  model.bin\nmd5 = {DIGEST[:32]}\n",
    "uuids.yaml": "\n".join(f"run_{i}: {uuid.UUID(int=DRAW.getrandbits(128))}" for i in range(20)),
    "poetry.lock": f'files = [\n  {{file = "a-1.0.whl", hash = "sha256:{DIGEST}"}},\n]\n',
    "package-lock.json": json.dumps({"integrity": "sha512-" + base64.b64encode(DRAW.randbytes(64)).decode()}),
    "requirements.txt": f"transformers==4.56.2 --hash=sha256:{DIGEST}\n",
    "train.py": (
        "token = tokenizer.pad_token\nkey = jax.random.PRNGKey(0)\npassword = os.environ['DB_PASSWORD']\n"
        "use_auth_token = True\napi_key = args.api_key\ntoken = get_secret('prod/hf')\nsecret_key = None\n"
        "key = 'transformer.h.0.attn.c_attn.weight'\nname = 'Wav2Vec2ConformerForPreTraining'\n"
        "url = 'https://huggingface.co/meta-llama/Llama-2-7b-hf/resolve/main/config.json'\n"
        f"revision = '{DIGEST[:40]}'\n"
    ),
    "recipe.yaml": "data:\n  key: input_ids\nmodel:\n  hidden_size: 768\n  tie_keys: true\n",
    "logo.html": f"<img src='data:image/png;base64,{base64.b64encode(DRAW.randbytes(900)).decode()}'>\n",
    "arn.yaml": "role: arn:aws:iam::111122223333:role/training\nimage: 763104351884.dkr.ecr.us-east-1.amazonaws.com/x:1\n",
}  # fmt: skip


def test_what_is_no_secret_is_sent(tmp_path):
    wrong = {name: list(find_secrets(name, text.encode())) for name, text in PLAIN.items()}
    assert {name: found for name, found in wrong.items() if found} == {}


def test_recipes_and_own_sources_are_sent():
    files = [path for path in sorted((ROOT / "recipes").rglob("*")) if path.suffix in (".py", ".yaml", ".md")]
    wrong = [one for path in files for one in find_secrets(path.name, path.read_bytes())]
    assert len(files) > 50
    assert wrong == []


@pytest.mark.slow
def test_few_files_of_installed_packages_are_refused():
    """Of 100 packages, 10 files each, at most 1 in 50 files and 1 in 10 packages."""
    site, draw = Path(sysconfig.get_path("purelib")), random.Random(1)
    names = sorted(path.name for path in site.iterdir() if path.is_dir() and not path.name.endswith(("-info", "__")))
    draw.shuffle(names)
    files = []
    for name in names[:100]:
        found = sorted(path for path in (site / name).rglob("*.py") if path.stat().st_size < 100_000)
        files += draw.sample(found, min(10, len(found)))
    wrong = [path for path in files if list(find_secrets(path.name, path.read_bytes()))]
    print(len(files), *wrong, sep="\n")
    assert len(files) > 400
    assert len(wrong) <= len(files) / 50
    assert len({path.relative_to(site).parts[0] for path in wrong}) <= 10


@pytest.mark.parametrize(
    "content",
    [
        f"first line\ntoken = {TOKEN}\n".encode("utf-16"),
        f"Schlüssel für\ntoken = {TOKEN}\n".encode("latin-1"),
        b"a" * 70_000 + f"\ntoken = {TOKEN} für\n".encode("latin-1"),
        f"first line\ntoken = {TOKEN}\n".encode("utf-8-sig"),
    ],
    ids=["UTF-16", "Latin-1", "Latin-1 after what decides whether it is sent", "byte order mark"],
)
def test_a_text_in_any_encoding_is_scanned(tmp_path, content):
    put(tmp_path, "notes.txt", content)
    with pytest.raises(LaunchError, match=r"notes\.txt:2 \(provider's token\)"):
        bundle(tmp_path)
    put(tmp_path, "notes.txt", content.replace(TOKEN.encode(), b"none").replace(TOKEN.encode("utf-16-le"), b"no"))
    assert bundle(tmp_path).files == ("notes.txt", "train.py")
