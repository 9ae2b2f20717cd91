# SPDX-License-Identifier: Apache-2.0
"""Tables in S3, on a server with its API: read as the same files on disk are; what is wrong is one sentence."""

import json

import boto3
import pytest

from lightning_sagemaker.recipes._common.data import table_sources
from lightning_sagemaker.recipes._common.data.table_sources import fingerprint, local_files, remote_files
from lightning_sagemaker.recipes._common.data.tables import DataError
from lightning_sagemaker.recipes.bert_qa.data import QuestionAnsweringDataModule
from lightning_sagemaker.recipes.sequence_classification.data import ClassificationDataModule
from tests.chaos.s3_server import Servers

KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def server():
    servers = Servers()
    yield servers.direct
    servers.close()


@pytest.fixture
def bucket(server, monkeypatch):
    """Writes files to a bucket: name -> content."""
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": server}.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="tables")
    remote_files.cache_clear()

    def put(files):
        remote_files.cache_clear()
        for name, content in files.items():
            client.put_object(Bucket="tables", Key=name, Body=content)

    yield put
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="tables"):
        for found in page.get("Contents", []):
            client.delete_object(Bucket="tables", Key=found["Key"])
    remote_files.cache_clear()


def rows(count, begin=0):
    lines = [
        f"{'red' if n % 2 else 'green'} thing {n},{'red' if n % 2 else 'green'}" for n in range(begin, begin + count)
    ]
    return "\n".join(["text,label", *lines]).encode()


def classified(folder, **sources):
    options = {"vocab_size": 100, "max_length": 16, "global_batch_size": 8, "cache_dir": str(folder)}
    data = ClassificationDataModule(**sources, **options)
    data.prepare_data()
    data.setup("fit")
    return data


def prepared(data):
    """What was prepared, without where it came from."""
    return {name: entry for name, entry in data.manifest["files"].items() if name != "report.json"}


def test_tables_in_s3_are_those_on_disk(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(table_sources, "_PART", 100)  # several requests for each file
    files = {"data/b.csv": rows(40), "data/deep/a.csv": rows(20, 40), "data/.hidden.csv": b"x", "data/read.me": b"x"}
    bucket({**files, "database/c.csv": rows(9), "test.csv": rows(10, 60)})
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "test.csv").write_bytes(rows(10, 60))
    remote = classified(tmp_path / "remote", train="s3://tables/data/", test="s3://tables/test.csv")
    local = classified(tmp_path / "local", train=str(tmp_path / "data"), test=str(tmp_path / "test.csv"))
    assert prepared(remote) == prepared(local)
    assert remote.manifest["counts"] == {"train": 54, "val": 6, "test": 10}
    assert remote.manifest["read"][0] == "train: s3://tables/data/b.csv: delimiter ',', utf-8"
    assert not list((tmp_path / "remote").rglob(".s3-*"))


def test_labels_in_the_names_of_folders_are_read_in_s3_as_on_disk(bucket, tmp_path):
    texts = {f"by/label={label}/0.csv": f"text\n{label} a\n{label} b\n".encode() for label in ("red", "green")}
    bucket(texts)
    for name, content in texts.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(content)
    here = classified(tmp_path / "a", train=str(tmp_path / "by"), val_fraction=0.0, test_fraction=0.0)
    there = classified(tmp_path / "b", train="s3://tables/by", val_fraction=0.0, test_fraction=0.0)
    assert prepared(there) == prepared(here)
    assert there.manifest["labels"] == ["green", "red"]


def test_questions_in_s3_are_those_on_disk(bucket, tmp_path):
    context = "Vienna lies on the Danube."
    answers = [{"text": "the Danube", "answer_start": 15}]
    qas = [{"id": str(number), "question": f"Where is it, {number}?", "answers": answers} for number in range(12)]
    text = json.dumps({"data": [{"title": "t", "paragraphs": [{"context": context, "qas": qas}]}]})
    table = json.dumps([{"question": "Where?", "context": context, "answer": "Vienna", "answer_start": 0}])
    bucket({"q/squad.json": text, "q/table.json": table})
    (tmp_path / "q").mkdir()
    (tmp_path / "q/squad.json").write_text(text)
    (tmp_path / "q/table.json").write_text(table)
    found = []
    for source in ("s3://tables/q", str(tmp_path / "q")):
        data = QuestionAnsweringDataModule(
            train=source, cache_dir=str(tmp_path / "cache"), vocab_size=100, global_batch_size=4
        )
        data.prepare_data()
        data.setup("fit")
        found.append(data)
    assert prepared(found[0]) == prepared(found[1])
    assert found[0].manifest["read"] == [
        "train: s3://tables/q/squad.json: SQuAD's JSON",
        "train: s3://tables/q/table.json: JSON, utf-8",
    ]


def test_other_content_is_another_source(bucket):
    bucket({"data/a.csv": rows(4)})
    first = fingerprint("s3://tables/data", "data.train")
    assert fingerprint("s3://tables/data", "data.train") == first
    bucket({"data/a.csv": rows(4, 1)})
    assert fingerprint("s3://tables/data", "data.train") != first


def test_what_has_changed_is_prepared_again_by_the_same_process(bucket, tmp_path):
    bucket({"a.csv": rows(40)})
    first = classified(tmp_path, train="s3://tables/a.csv")
    boto3.client("s3").put_object(Bucket="tables", Key="a.csv", Body=rows(50))
    assert sum(classified(tmp_path, train="s3://tables/a.csv").manifest["counts"].values()) == 50
    boto3.client("s3").put_object(Bucket="tables", Key="a.csv", Body=rows(60))
    first.prepare_data()
    first.setup("fit")
    assert sum(first.manifest["counts"].values()) == 60


def test_many_files_are_all_found(bucket, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")  # on a page; S3's have 1000
    bucket({f"many/{number:04d}.csv": b"x" for number in range(25)})
    assert boto3.client("s3").list_objects_v2(Bucket="tables")["KeyCount"] == 10
    assert len(remote_files("s3://tables/many", "data.train")) == 25


@pytest.mark.parametrize(
    ("address", "files", "said"),
    [
        ("s3://tables/nothing", {}, r"data.train='s3://tables/nothing' was set, but there is no table\. HINT: "),
        ("s3://tables/data", {"data/a.txt": b"x", "data/~$a.csv": b"x"}, "there is no table"),
        ("s3://other/data", {}, "data.train='s3://other/data' was set: s3://other/data .*NoSuchBucket.* HINT: "),
        ("s3://", {}, "'s3://' is not an S3 address. HINT: "),
        ("s3://tables/a.csv", {"a.csv": b""}, r"^s3://tables/a.csv has no records\. HINT: "),
        ("s3://tables/a.csv", {"a.csv": rows(3) + b"\nx"}, "^s3://tables/a.csv cannot be read: record 4 .* HINT: "),
    ],
)
def test_what_cannot_be_read_is_one_sentence(bucket, tmp_path, address, files, said):
    bucket(files)
    with pytest.raises(DataError, match=said) as error:
        classified(tmp_path, train=address)
    assert str(error.value).count("HINT: ") == 1
    assert "/.s3-" not in str(error.value)
    assert not list(tmp_path.rglob(".s3-*"))


def test_the_option_is_named_as_it_is_set(bucket, tmp_path):
    bucket({"a.csv": rows(30)})
    for place, said in (("s3://tables/none", "there is no table"), (str(tmp_path / "none.csv"), "does not exist")):
        with pytest.raises(DataError, match=rf"^data\.validation='{place}' was set, but .*{said}"):
            classified(tmp_path, train="s3://tables/a.csv", validation=place)


def test_a_file_that_changes_while_it_is_copied_is_refused(bucket, tmp_path, monkeypatch):
    bucket({"a.csv": rows(30)})
    read = table_sources.S3Objects.read

    def changed_behind(self, *span):
        found = read(self, *span)
        boto3.client("s3").put_object(Bucket="tables", Key="a.csv", Body=rows(30, 30))
        return found

    monkeypatch.setattr(table_sources.S3Objects, "read", changed_behind)
    said = r"s3://tables/a.csv was changed while it was read\. HINT: "
    with pytest.raises(DataError, match=said), local_files("s3://tables/a.csv", "data.train", tmp_path):
        pytest.fail("it was read")
    assert not list(tmp_path.iterdir())


def test_files_are_copied_with_one_client(bucket, monkeypatch):
    """Which takes half a second to create: with one for each, a thousand files took many minutes."""
    made = []

    class Counted(table_sources.S3Objects):
        def __init__(self):
            super().__init__()
            made.append(self)

    bucket({f"many/{number}.csv": b"text,label" for number in range(5)})
    remote_files("s3://tables/many", "data.train")
    monkeypatch.setattr(table_sources, "S3Objects", Counted)
    with local_files("s3://tables/many", "data.train") as files:
        assert len(files.paths) == 5
    assert len(made) == 1


def test_a_key_may_be_longer_than_a_file_name(bucket):
    bucket({f"long/{'ü' * 300}.csv": b"text,label"})
    with local_files("s3://tables/long", "data.train") as files:
        assert [(path.suffix, path.read_bytes()) for path in files.paths] == [(".csv", b"text,label")]
