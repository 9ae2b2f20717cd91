# SPDX-License-Identifier: Apache-2.0
"""What of a local folder is uploaded as a channel: data of any kind, and no secret."""

import base64
import json
import logging
import random
import time

import pytest

from lightning_sagemaker.launch import Estimator, LaunchError
from lightning_sagemaker.launch.planning.report import describe
from lightning_sagemaker.launch.source import channel_files
from lightning_sagemaker.launch.source.channel_files import choose_channel_files
from tests.launch.secret_kinds import SHAPES, drawn
from tests.launch.service import ROLE
from tests.launch.source.test_secret_scan import put

DRAW = random.Random(0)
SEARCHED = (
    "anthropic", "aws access key", "aws temporary key", "docker hub", "gcp api key", "github", "github fine-grained",
    "gitlab", "hugging face", "npm", "openai project", "pypi", "sendgrid", "slack bot", "stripe",
)  # fmt: skip
"""Kinds of :mod:`.secret_kinds` whose format leaves no doubt."""


def test_data_of_any_kind_goes_and_credentials_hidden_files_and_caches_stay(tmp_path):
    data = tmp_path / "data"
    go = [
        "train.csv", "model.pt", "a.parquet", "b.ckpt", "all.tar.gz", "runs/1.json", "outputs/x.txt", "purchase_history",
        "data.db", "notes.log", "book.ipynb", "old.bak", "build/a.bin", "forgot_password.csv", "intents/card_login.txt",
    ]  # fmt: skip
    stay = [".env", ".git/config", ".aws/credentials", "id_rsa", "server.key", "kaggle.json", "state/main.tfstate",
            "__pycache__/a.pyc", "venv/bin/python", ".DS_Store", "small.tokens", ".db_password",
            "secrets/login.txt"]  # fmt: skip
    for name in (*go, *stay):
        put(data, name)
    put(data, "wiki.train.tokens", "the unk token , \n" * 10_000)
    put(data, "blob.txt", b"\0\1\2" * 100)
    cache = put(tmp_path, ".cache/hub/blobs/abc", "weights")
    secret = put(tmp_path, ".config/tool/settings", "x")
    (data / "linked.bin").symlink_to(cache)
    (data / "settings.txt").symlink_to(secret)
    (data / "login.txt").symlink_to(".aws/credentials")
    found = choose_channel_files("train", data)
    assert set(found.taken) == {*go, "wiki.train.tokens", "blob.txt", "linked.bin"}
    left = {name: reason.partition(" (")[0] for name, reason in found.left_out.items()}
    assert left == {
        ".env": "credentials", ".git": "hidden", ".aws": "hidden", "id_rsa": "credentials", "server.key": "credentials",
        "kaggle.json": "credentials", "state/main.tfstate": "credentials", "__pycache__": "cache or environment",
        "venv": "cache or environment", ".DS_Store": "hidden", "small.tokens": "credentials", "settings.txt": "hidden",
        "login.txt": "credentials", ".db_password": "credentials", "secrets/login.txt": "credentials",
    }  # fmt: skip
    named = choose_channel_files("train", data, ["inputs/train/id_rsa", "inputs/other/server.key", "inputs/train/.DS*"])
    assert {"id_rsa", ".DS_Store"} <= set(named.taken)
    assert "server.key" not in named.taken


def test_tokens_within_data_are_an_error_that_names_the_line_and_not_the_token(tmp_path, monkeypatch):
    monkeypatch.setattr(channel_files, "_CHUNK", 10_000)
    lines = [f'{{"text": "a review, number {i}"}}\n' for i in range(3000)]
    for number, kind in enumerate(SEARCHED):
        place = tmp_path / str(number)
        token = drawn(kind)
        put(place, "a/train.jsonl", "".join([*lines[:2500], f'{{"text": "{token}"}}\n', *lines[2500:]]))
        with pytest.raises(LaunchError, match=r"inputs/train/a/train\.jsonl:2501 .*HINT: ") as error:
            choose_channel_files("train", place)
        assert token not in str(error.value), kind
        for override in ("inputs/train/a/train.jsonl:2501", "inputs/train/*:*"):
            assert choose_channel_files("train", place, [override]).unsearched == 0
    key = tmp_path / "key"
    put(key, "account.json", json.dumps({"text": SHAPES["rsa key"].replace("KCAQEA7", "KCAQEA7" * 9)}))
    put(key, "conf.yaml", f"a: 1\npassword: {drawn('db_password')}\n")
    with pytest.raises(LaunchError, match=r"inputs/x/account\.json:1 .*inputs/x/conf\.yaml:2"):
        choose_channel_files("x", key)


def test_data_that_looks_random_is_no_secret(tmp_path):
    def word(letters, count):
        return "".join(DRAW.choice(letters) for _ in range(count))

    upper, alnum = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    put(
        tmp_path,
        "reviews.jsonl",
        "".join(json.dumps({"user_id": word(upper, 28), "asin": word(upper, 10)}) + "\n" for _ in range(500)),
    )
    put(tmp_path, "dna.fasta", ">1\n" + "\n".join(word("ACGT", 70) for _ in range(500)))
    put(tmp_path, "protein.fasta", ">1\n" + "\n".join("AKIA" + word("ACDEFGHIKLMNPQRSTVWY", 60) for _ in range(500)))
    put(
        tmp_path,
        "ids.csv",
        "id,text\n" + "".join(f"{word(alnum, 22)},password: please reset my secret token\n" for _ in range(500)),
    )
    put(tmp_path, "image.txt", base64.b64encode(DRAW.randbytes(60_000)).decode())
    put(
        tmp_path,
        "chat.txt",
        "user: what is my password?\nagent: your api_key=hunter2abc is in https://a:pass1@example.com\n" * 100,
    )
    put(tmp_path, "help.md", "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----\n")
    assert len(choose_channel_files("train", tmp_path).taken) == 7


def test_only_the_beginnings_are_searched_and_the_rest_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(channel_files, "SEARCHED_OF_FILE", 100_000)
    put(tmp_path, "a.txt", "word " * 100_000)
    put(tmp_path, "b.bin", bytes(1000))
    found = choose_channel_files("train", tmp_path)
    assert (found.size, found.unsearched) == (501_000, 401_000)
    monkeypatch.setattr(channel_files, "SEARCHED", 0)
    assert choose_channel_files("train", tmp_path).unsearched == 501_000


def test_nothing_to_send_is_an_error(tmp_path):
    put(tmp_path, ".env")
    for place in (tmp_path, tmp_path / ".env"):
        with pytest.raises(LaunchError, match=r"Nothing in channel 'train' is sent \(\.env: credentials\)\. HINT: "):
            choose_channel_files("train", place)


def test_only_what_the_plan_names_is_uploaded_and_fit_says_what_stays(aws, sdk, tmp_path, caplog):
    source, data = tmp_path / "src", tmp_path / "data"
    for name in ("train.py", "env/a.py", "runs/1.txt", "head.pt"):
        put(source, name)
    for name in ("a.csv", "deep/b.csv", ".env", "deep/.git/config", "deep/id_rsa"):
        put(data, name, "1,2\n")
    job = {"entry_point": "train.py", "source_dir": str(source), "role": ROLE, "instance_type": "ml.m5.xlarge"}
    estimator = Estimator(**job, region="us-east-1", include_plugin=False)
    inputs = {"train": str(data), "one": str(data / "a.csv")}
    lines = describe(estimator.plan(inputs))
    told = " ".join(text for word, text in lines if word == "not sent")
    assert "train: " in dict(lines)["inputs"]
    assert "is uploaded: 2 files" in dict(lines)["inputs"]
    with caplog.at_level(logging.INFO):
        estimator.fit(inputs, wait=False)
    warned = " ".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    for text in (told, warned):
        for name in (
            "env",
            "runs",
            "head.pt",
            "inputs/train/.env",
            "inputs/train/deep/.git",
            "inputs/train/deep/id_rsa",
        ):
            assert name in text
    request = aws.requests[estimator.job_name]
    places = {one["ChannelName"]: one["DataSource"]["S3DataSource"]["S3Uri"] for one in request["InputDataConfig"]}
    bucket, _, prefix = places["train"].removeprefix("s3://").partition("/")
    objects = aws.client("s3").list_objects_v2(Bucket=bucket, Prefix=prefix.rpartition("/input/")[0])["Contents"]
    names = {one["Key"].rpartition("/input/")[2] for one in objects}
    assert {name for name in names if name.startswith(("train/", "one/"))} == {
        "train/a.csv", "train/deep/b.csv", "one/a.csv"
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.alone
def test_a_gigabyte_and_many_files_are_chosen_in_seconds(tmp_path):
    with (tmp_path / "a.jsonl").open("w") as file:
        for _ in range(1024):
            file.write('{"text": "some words of a long text, all the same"}\n' * 20_000)
    for number in range(20_000):
        put(tmp_path, f"{number % 100}/{number}.txt", "a text\n")
    begin = time.monotonic()
    found = choose_channel_files("train", tmp_path)
    print(f"{time.monotonic() - begin:.1f} s, {found.size / 2**30:.1f} GiB, {len(found.taken)} files")
    assert len(found.taken) == 20_001
    assert time.monotonic() - begin < 120


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_table_in_another_encoding_is_searched_too(encoding, tmp_path):
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    rows = "für,1\n" * 1000
    put(tmp_path, "train.csv", (rows + token + "\n" + rows).encode(encoding))
    with pytest.raises(LaunchError, match=r"inputs/train/train.csv:1001 \(GitHub token\)"):
        choose_channel_files("train", tmp_path)
