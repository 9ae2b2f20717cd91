# SPDX-License-Identifier: Apache-2.0
"""What a job made, got onto this disk: archives that do not escape, and nothing replaced that was there."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from lightning_sagemaker import cli
from lightning_sagemaker.launch import LaunchError
from lightning_sagemaker.launch.transfer import fetch, fetch_listed, unpack, up_to_last_line
from tests.conftest import ROOT
from tests.launch.hostile_archives import HARD, SYMLINK, entry, write

MAY_PASS = ("set user", "link over itself", "hard link to a file", "hard link with dots", "mode through a link")
"""Unpacked without harm: the mode is not taken over, and of two entries of one name only the last counts."""

PYTHONS = [sys.executable, *sorted(map(str, Path("~/.pyenv/versions").expanduser().glob("3.1[0-9]*/bin/python")))]


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: Path(python).parts[-3])
def test_no_archive_escapes(python):
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    done = subprocess.run(
        [python, "-m", "tests.launch.hostile_archives"], cwd=ROOT, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)["found"]
    assert len(found) >= 13
    assert [name for name, (_, intact) in found.items() if not intact] == []
    assert [name for name, (said, _) in found.items() if not said and name not in MAY_PASS] == []
    assert all(said.startswith("LaunchError: ") and said.count("HINT: ") == 1 for said, _ in found.values() if said)


def test_what_training_leaves_comes_back(tmp_path):
    write(
        tmp_path / "a.tar.gz",
        [
            entry("checkpoints", tarfile.DIRTYPE, mode=0o755), entry("checkpoints/step-2.ckpt", content=b"two"),
            entry("checkpoints/last.ckpt", SYMLINK, "step-2.ckpt"), entry("best.ckpt", SYMLINK, "./checkpoints/last.ckpt"),
            entry("same.ckpt", HARD, "checkpoints/step-2.ckpt"), entry("run.sh", mode=0o755), entry("empty", content=b""),
        ],
    )  # fmt: skip
    unpack(tmp_path / "a.tar.gz", tmp_path / "got")
    got = {
        path.relative_to(tmp_path / "got").as_posix(): path for path in (tmp_path / "got").rglob("*") if path.is_file()
    }
    assert {name: path.read_bytes() for name, path in got.items()} == {
        "checkpoints/step-2.ckpt": b"two", "checkpoints/last.ckpt": b"two", "best.ckpt": b"two", "same.ckpt": b"two",
        "run.sh": b"escaped\n", "empty": b"",
    }  # fmt: skip
    assert got["run.sh"].stat().st_mode & 0o777 == 0o755


def test_an_archive_that_is_cut_or_none_is_one_sentence(tmp_path):
    write(tmp_path / "whole.tar.gz", [entry("a", content=os.urandom(20_000))])
    whole = (tmp_path / "whole.tar.gz").read_bytes()
    broken = bytearray(whole)
    broken[-6] ^= 1  # in the checksum
    contents = [whole[:size] for size in (0, 1, 10, 100, 5_000, len(whole) - 4)] + [
        bytes(broken),
        b"<html>",
        os.urandom(500),
    ]
    for number, content in enumerate(contents):
        (tmp_path / "cut.tar.gz").write_bytes(content)
        with pytest.raises(LaunchError, match="cut.tar.gz cannot be unpacked: .*HINT: ") as error:
            unpack(tmp_path / "cut.tar.gz", tmp_path / str(number))
        assert "\n" not in str(error.value)


def test_nothing_is_replaced_that_was_not_downloaded(aws, tmp_path, capsys, monkeypatch):
    s3, bucket = aws.client("s3"), "made"
    s3.create_bucket(Bucket=bucket)
    write(tmp_path / "model.tar.gz", [entry("weights.bin", content=b"new")])
    s3.upload_file(str(tmp_path / "model.tar.gz"), bucket, "job/output/model.tar.gz")
    aws.jobs["job"] = {
        "TrainingJobName": "job", "TrainingJobStatus": "Completed", "SecondaryStatus": "Completed",
        "OutputDataConfig": {"S3OutputPath": f"s3://{bucket}"},
        "ModelArtifacts": {"S3ModelArtifacts": f"s3://{bucket}/job/output/model.tar.gz"},
    }  # fmt: skip
    own = tmp_path / "project"
    for name in ("model", "output"):
        (own / name).mkdir(parents=True)
        (own / name / "mine.py").write_text("mine")
    monkeypatch.chdir(own)
    assert cli.main(["download", "job", "."]) == 2
    assert "'model' exists and was not made by a download, so it is not replaced. HINT: " in capsys.readouterr().err
    assert (own / "model" / "mine.py").read_text() == (own / "output" / "mine.py").read_text() == "mine"
    assert sorted(os.listdir(own)) == ["model", "output"]
    for _ in range(2):  # the second replaces the first
        assert cli.main(["download", "job", "got"]) == 0
        assert (own / "got" / "model" / "weights.bin").read_text() == "new"
        assert os.listdir(own / "got") == ["model"]
    (own / "got" / "link").symlink_to(own / "model")
    (own / "file").touch()
    assert cli.main(["download", "job", "file"]) == 2
    assert "'file' cannot be created" in capsys.readouterr().err


def test_a_model_that_was_not_compressed_comes_back(aws, tmp_path):
    """With `disable_output_compression` there are no archives, but files below their names without `.tar.gz`."""
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="as-files")
    base = "s3://as-files/out/loose/output"
    names = ["model/weights.bin", "model/code/inference.py", "model.tar.gz", "output/data/metrics.json"]
    for name in names:
        s3.put_object(Bucket="as-files", Key=f"out/loose/output/{name}", Body=b"x")
    for model in (f"{base}/model", f"{base}/model/"):
        aws.jobs["loose"] = {
            "TrainingJobName": "loose", "TrainingJobStatus": "Completed", "SecondaryStatus": "Completed",
            "OutputDataConfig": {"S3OutputPath": "s3://as-files/out", "CompressionType": "NONE"},
            "ModelArtifacts": {"S3ModelArtifacts": model},
        }  # fmt: skip
        assert cli.main(["download", "loose", str(tmp_path)]) == 0
        got = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*") if path.suffix)
        assert got == ["model/code/inference.py", "model/weights.bin", "output/data/metrics.json"]


def test_a_sample_of_a_large_text_is_cut_at_a_line(aws, tmp_path):
    """A rehearsal gets the first lines of each text, and does not download gigabytes for them."""
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="samples")
    line = b"a line of thirty-two characters\n"
    for name, body in {"train.csv": line * 1000, "validation.csv": line * 50, "z.bin": b"0" * 9000}.items():
        s3.put_object(Bucket="samples", Key=f"data/{name}", Body=body)
    assert fetch(s3, "s3://samples/data", tmp_path, limit=1000) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"train.csv", "validation.csv"}
    assert (tmp_path / "train.csv").read_bytes() == line * (1000 // len(line))
    assert fetch(s3, "s3://samples/data", tmp_path / "three", limit=1000, least=3) == 3  # three hosts share them
    assert fetch(s3, "s3://samples/data", tmp_path / "all") == 3
    assert (tmp_path / "all/train.csv").read_bytes() == line * 1000
    assert up_to_last_line(b"one line only") == b"one line only"


def test_a_channels_prefix_may_end_within_a_name(aws, tmp_path):
    """SageMaker takes every object that begins with it, by its full name (aws/sagemaker-python-sdk#3612)."""
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="prefixes")
    for name in ("train/a.csv", "train/b/c.csv", "train-1.csv", "train2/d.csv", "train2/", "test.csv", "x/train.csv"):
        s3.put_object(Bucket="prefixes", Key=f"data/{name}", Body=b"x")

    def files(uri, **more):
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        fetch(s3, uri, place, **more)
        return sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())

    for uri, others in (
        ("s3://prefixes/data/train", ["train-1.csv", "train2/d.csv"]),
        ("s3://prefixes/data/train/", []),
    ):
        assert files(uri) == ["a.csv", "b/c.csv"]
        assert files(uri, is_channel=True) == ["a.csv", "b/c.csv", *others]
    assert files("s3://prefixes/data/tra") == []
    assert files("s3://prefixes/data/tra", is_channel=True) == [
        "train-1.csv", "train/a.csv", "train/b/c.csv", "train2/d.csv",
    ]  # fmt: skip
    assert files("s3://prefixes/data/x/train.csv", is_channel=True) == ["train.csv"]
    assert len(files("s3://prefixes", is_channel=True)) == 6


def test_a_manifest_stands_for_the_objects_that_it_lists(aws, tmp_path):
    """As in a training job, where the program never sees the manifest."""
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="listed")
    for name in ("a.csv", "more/b.csv", "c.csv", "not-listed.csv"):
        s3.put_object(Bucket="listed", Key=f"data/{name}", Body=b"12345678\n")

    def listing(content, **more):
        s3.put_object(Bucket="listed", Key="train.manifest", Body=json.dumps(content).encode())
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        fetch_listed(s3, "s3://listed/train.manifest", place, **more)
        return sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())

    listed = [{"prefix": "s3://listed/data/"}, "a.csv", "more/b.csv", "c.csv"]
    assert listing(listed) == ["a.csv", "c.csv", "more/b.csv"]
    assert listing(listed, limit=5) == ["a.csv"]
    assert listing(listed, limit=5, least=2) == ["a.csv", "more/b.csv"]
    for content in ({}, [], ["a.csv"], [{"prefix": "s3://listed/data/"}, 1], 7):
        with pytest.raises(LaunchError, match=r"s3://listed/train.manifest is not a manifest .*HINT"):
            listing(content)
    with pytest.raises(LaunchError, match="points outside its folder"):
        listing([{"prefix": "s3://listed/"}, "../../a.csv"])


@pytest.mark.parametrize("names", [["a", "a/b"], ["c" * 300]], ids=["a file and a folder", "a long name"])
def test_keys_that_are_no_file_names_are_one_sentence(aws, tmp_path, names):
    """S3 has no folders, so it allows them."""
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="keys")
    for name in names:
        s3.put_object(Bucket="keys", Key=f"{len(names)}/{name}", Body=b"x")
    with pytest.raises(LaunchError, match=f"holds '{len(names)}/{names[-1][:50]}.*which cannot be written here.*HINT"):
        fetch(s3, f"s3://keys/{len(names)}", tmp_path / "out")
