# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in S3, on a real server that fails on purpose."""

import json
import zipfile
import zlib
from io import BytesIO

import boto3
import pytest
import torch

from lightning_sagemaker import S3CheckpointIO
from lightning_sagemaker.checkpoint.atomic_write import CheckpointError
from tests.chaos import worker
from tests.chaos.harness import lines_of
from tests.chaos.s3_server import Servers
from tests.chaos.test_exact import SignalAt, losses

BUCKET = "checkpoints"
CONTENT = {"global_step": 3, "state_dict": {"weight": torch.arange(3_000_000.0)}}
"""12 MB: two parts of S3's smallest size and a rest."""


@pytest.fixture(scope="module")
def servers():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_REGION", "us-east-1"),
        ):
            patch.setenv(name, value)
        patch.setattr(worker, "PAUSE", 0.0)
        patch.setattr(worker, "OVERHEAD", 1.0)
        servers = Servers()
        boto3.client("s3", endpoint_url=servers.direct).create_bucket(Bucket=BUCKET)
        yield servers
        servers.close()


@pytest.fixture
def io(servers):
    servers.faults.clear()
    servers.requests.clear()
    return S3CheckpointIO(
        endpoint=servers.endpoint,
        pause=0.05,
        options={"force_path_style": True, "part_size": 5 * 2**20, "max_attempts": 2},
    )


def test_a_checkpoint_comes_back(io, servers):
    path = f"s3://{BUCKET}/run/a.ckpt"
    io.save_checkpoint(CONTENT, path)
    found = io.load_checkpoint(path)
    assert torch.equal(found["state_dict"]["weight"], CONTENT["state_dict"]["weight"])
    assert sum("a.ckpt?partNumber" in request for request in servers.requests) == 3
    assert io.newest(f"s3://{BUCKET}/run", print) == (path, 3)
    io.remove_checkpoint(path)
    assert io.newest(f"s3://{BUCKET}/run", print) is None


@pytest.mark.parametrize("faults", [["503"], ["500", "500"], ["drop"], ["drop", "503", "drop"], ["slow"]])
def test_what_fails_for_a_while_is_tried_again(io, servers, faults):
    path = f"s3://{BUCKET}/faults/a.ckpt"
    servers.faults[:] = list(faults)
    io.save_checkpoint({"global_step": 1, "state_dict": {}}, path)
    servers.faults[:] = list(faults)
    assert io.load_checkpoint(path)["global_step"] == 1
    assert servers.faults == []


def test_what_fails_for_good_says_so_and_leaves_the_one_before(io, servers):
    path = f"s3://{BUCKET}/gone/a.ckpt"
    io.save_checkpoint({"global_step": 1}, path)
    servers.faults[:] = ["503"] * 60
    with pytest.raises(CheckpointError, match="in 4 attempts.*HINT"):
        io.save_checkpoint({"global_step": 2}, path)
    servers.faults.clear()
    assert io.load_checkpoint(path)["global_step"] == 1


def test_only_whole_ones_of_this_folder_are_found(io):
    io.save_checkpoint({"global_step": 5}, f"s3://{BUCKET}/job/a.ckpt")
    io.save_checkpoint({"global_step": 9}, f"s3://{BUCKET}/job-2/b.ckpt")  # a neighbor
    io.save_checkpoint({"global_step": 7}, f"s3://{BUCKET}/job/c.ckpt")
    io._client.delete_object(BUCKET, "job/c.ckpt.json")  # killed before it was written
    said = []
    assert io.newest(f"s3://{BUCKET}/job/", said.append) == (f"s3://{BUCKET}/job/a.ckpt", 5)
    assert len(said) == 1
    io._put(BUCKET, "job/a.ckpt", b"x" * io._client.head_object(BUCKET, "job/a.ckpt").size)
    with pytest.raises(CheckpointError, match="checksum differs.*HINT"):
        io.load_checkpoint(f"s3://{BUCKET}/job/a.ckpt")


def test_a_damaged_archive_is_not_taken_for_the_one_of_another_writer(io):
    """Its members' checksums are right: one is marked as a folder, of which torch would read nothing."""
    path = f"s3://{BUCKET}/marked/a.ckpt"
    io.save_checkpoint({"global_step": 5, "weight": torch.arange(3.0)}, path)
    content = bytearray(io._get(BUCKET, "marked/a.ckpt"))
    with zipfile.ZipFile(BytesIO(content)) as archive:
        [member] = [one for one in archive.infolist() if one.filename.endswith("data/0")]
        entry = content.index(member.filename.encode(), archive.start_dir) - 46
    content[entry + 38] |= 0x10
    io._put(BUCKET, "marked/a.ckpt", bytes(content))
    with pytest.raises(CheckpointError, match="checksum differs.*HINT"):
        io.load_checkpoint(path)


def test_a_checkpoint_that_cannot_be_read_now_is_not_taken_for_none(io, servers):
    """Else a job would begin anew because the server was busy."""
    path = f"s3://{BUCKET}/busy/a.ckpt"
    io.save_checkpoint({"global_step": 5}, path)
    servers.faults[:] = ["pass", "503"]  # the list arrives, what is beside the checkpoint does not
    assert io.newest(f"s3://{BUCKET}/busy", print) == (path, 5)
    servers.faults[:] = ["pass", *["503"] * 60]
    with pytest.raises(CheckpointError, match="could not read.*in 4 attempts.*HINT"):
        io.newest(f"s3://{BUCKET}/busy", print)


def test_bad_input_is_one_sentence(monkeypatch):
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(CheckpointError, match="region.*HINT"):
        S3CheckpointIO()
    with pytest.raises(CheckpointError, match="not an S3 address.*HINT"):
        S3CheckpointIO("us-east-1").load_checkpoint("s3:/bucket/key")


def test_a_run_goes_on_from_s3(io, servers, tmp_path):
    """Stopped by a signal while the server fails now and then; the losses are those of a run that was not stopped."""
    calm, folder, address = tmp_path / "calm", tmp_path / "run", f"s3://{BUCKET}/training"
    for place in (calm, folder):
        place.mkdir()
    worker.train(calm, 20)
    servers.faults[:] = ["503", "drop"]
    with pytest.raises(SystemExit):
        worker.train(folder, 20, checkpoints=address, plugins=io, callbacks=[SignalAt(9, False)])
    assert 9 < len(lines_of(folder)) < 20
    worker.train(folder, 20, checkpoints=address, plugins=io)
    assert losses(folder) == losses(calm)


def test_a_checkpoint_of_many_files(io, servers, tmp_path):
    """As those of which each process writes its part: whole when all are there and unchanged."""
    folder, path = f"s3://{BUCKET}/many", f"s3://{BUCKET}/many/a.ckpt"
    files = {"__0_0.distcp": b"x" * 1000, "__1_0.distcp": b"y" * (9 * 2**20), ".metadata": b"m"}
    sent = {}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        servers.faults += ["503", "drop"]
        sent[name] = io.put_part(path, tmp_path / name)
    said = []
    assert io.newest(folder, said.append) is None  # nothing says that it is whole
    io.finish_parts(path, 7, sent)
    assert io.newest(folder, said.append) == (path, 7)
    assert io.names(folder) == ["a.ckpt"]
    io.fetch_parts(path, tmp_path / "got")
    assert {name: (tmp_path / "got" / name).read_bytes() for name in files} == files
    s3 = boto3.client("s3", endpoint_url=servers.direct)
    (part,) = (key for key in keys(s3, "many/") if key.endswith("__0_0.distcp"))
    s3.put_object(Bucket=BUCKET, Key=part, Body=b"z" * 1000)
    with pytest.raises(CheckpointError, match="__0_0.distcp is corrupt: its checksum differs"):
        io.fetch_parts(path, tmp_path / "again")
    s3.delete_object(Bucket=BUCKET, Key=part)
    assert io.newest(folder, said.append) is None
    assert "a.ckpt is incomplete" in said[-1]
    for note in (b"{", b"{}", b'{"parts": {"a": 1}}', b"[]"):
        s3.put_object(Bucket=BUCKET, Key="many/a.ckpt.json", Body=note)
        with pytest.raises(CheckpointError, match="a.ckpt.json is not a valid checkpoint index.*HINT"):
            io.fetch_parts(path, tmp_path / "again")
    io.remove_checkpoint(path)
    assert io.names(folder) == []


def keys(s3, prefix):
    return [one["Key"] for one in s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])]


@pytest.mark.parametrize("more", [{}, {"longer": "x" * 5000}], ids=["same size", "other size"])
def test_a_checkpoint_that_was_replaced_without_its_note_is_resumed_from(io, servers, more):
    """As ``last.ckpt``, if the process was killed between the two: else its job would begin anew, or never start."""
    path, s3 = f"s3://{BUCKET}/replaced/last.ckpt", boto3.client("s3", endpoint_url=servers.direct)
    io.save_checkpoint({"global_step": 5}, path)
    note = s3.get_object(Bucket=BUCKET, Key="replaced/last.ckpt.json")["Body"].read()
    io.save_checkpoint({"global_step": 9, **more}, path)
    s3.put_object(Bucket=BUCKET, Key="replaced/last.ckpt.json", Body=note)
    assert io.newest(f"s3://{BUCKET}/replaced", print) == (path, 9)
    assert io.load_checkpoint(path)["global_step"] == 9


def test_a_replaced_checkpoint_is_read_as_data_only_unless_the_script_trusts_it(io, servers):
    path, s3 = f"s3://{BUCKET}/objects/last.ckpt", boto3.client("s3", endpoint_url=servers.direct)
    io.save_checkpoint({"global_step": 5}, path)
    note = s3.get_object(Bucket=BUCKET, Key="objects/last.ckpt.json")["Body"].read()
    io.save_checkpoint({"global_step": 9, "object": SignalAt(9, False)}, path)
    s3.put_object(Bucket=BUCKET, Key="objects/last.ckpt.json", Body=note)
    with pytest.raises(CheckpointError, match=f"^{path} is complete, but holds more.*HINT"):
        io.newest(f"s3://{BUCKET}/objects", print)
    assert io.newest(f"s3://{BUCKET}/objects", print, weights_only=False) == (path, 9)


def test_a_corrupt_checkpoint_is_skipped_and_one_of_weights_only_too(io, servers):
    s3, said = boto3.client("s3", endpoint_url=servers.direct), []
    for name, step in (("a", 5), ("b", 7)):
        io.save_checkpoint({"global_step": step, "w": torch.arange(100.0)}, f"s3://{BUCKET}/bad/{name}.ckpt")
    io.save_checkpoint({"global_step": 9, "loops": {}, "state_dict": {}}, f"s3://{BUCKET}/bad/c.ckpt")
    content = bytearray(s3.get_object(Bucket=BUCKET, Key="bad/b.ckpt")["Body"].read())
    content[len(content) // 2] ^= 1
    s3.put_object(Bucket=BUCKET, Key="bad/b.ckpt", Body=bytes(content))
    assert io.newest(f"s3://{BUCKET}/bad", said.append) == (f"s3://{BUCKET}/bad/a.ckpt", 5)
    assert said[0].startswith(f"s3://{BUCKET}/bad/b.ckpt (step 7) is damaged; skipping it")
    assert said[1:] == [f"s3://{BUCKET}/bad/c.ckpt is incomplete; skipping it (it contains weights only)"]


@pytest.mark.parametrize("fault", ["truncated", "flipped"])
def test_a_checkpoint_that_changes_in_transit_is_read_again(io, servers, fault):
    path = f"s3://{BUCKET}/transit/a.ckpt"
    io.save_checkpoint({"global_step": 5, "w": torch.arange(100.0)}, path)
    servers.requests.clear()
    io.load_checkpoint(path)
    reads = [number for number, one in enumerate(servers.requests) if one.startswith("GET") and one.endswith("/a.ckpt")]
    servers.faults[:] = ["pass"] * reads[-1] + [fault]
    assert io.load_checkpoint(path)["global_step"] == 5
    assert servers.faults == []


def test_a_checkpoint_of_many_files_is_replaced_at_once(io, servers, tmp_path):
    """By one of as many processes, of fewer, and in place of a single file."""
    folder, path, s3 = (
        f"s3://{BUCKET}/again",
        f"s3://{BUCKET}/again/a.ckpt",
        boto3.client("s3", endpoint_url=servers.direct),
    )

    def send(letter, ranks):
        for rank in range(ranks):
            (tmp_path / f"__{rank}_0.distcp").write_text(letter * 1000)
        return {f"__{rank}_0.distcp": io.put_part(path, tmp_path / f"__{rank}_0.distcp") for rank in range(ranks)}

    io.save_checkpoint({"global_step": 1}, path)
    io.finish_parts(path, 5, send("a", 4))
    assert io.newest(folder, print) == (path, 5)
    send("b", 1)  # killed before the others
    assert io.newest(folder, print) == (path, 5)
    io.fetch_parts(path, tmp_path / "old")
    assert {file.read_text() for file in (tmp_path / "old").iterdir()} == {"a" * 1000}
    io.finish_parts(path, 9, send("c", 2))
    assert io.newest(folder, print) == (path, 9)
    io.fetch_parts(path, tmp_path / "new")
    assert {file.read_text() for file in (tmp_path / "new").iterdir()} == {"c" * 1000}
    assert len(list((tmp_path / "new").iterdir())) == 2
    assert len(keys(s3, "again/a.ckpt/")) == 3  # those of the complete one, and that of the killed
    io.remove_checkpoint(path)
    assert keys(s3, "again/") == []


def test_a_checkpoint_of_an_earlier_version_is_read(io, servers, tmp_path):
    """Whose parts had no folders of their own, and whose note says less."""
    path, s3 = f"s3://{BUCKET}/earlier/a.ckpt", boto3.client("s3", endpoint_url=servers.direct)
    s3.put_object(Bucket=BUCKET, Key="earlier/a.ckpt/meta.pt", Body=b"x" * 10)
    facts = {"step": 3, "fits": 0, "size": 10, "crc32": 0, "parts": {"meta.pt": [10, zlib.crc32(b"x" * 10)]}}
    s3.put_object(Bucket=BUCKET, Key="earlier/a.ckpt.json", Body=json.dumps(facts).encode())
    assert io.newest(f"s3://{BUCKET}/earlier", print) == (path, 3)
    io.fetch_parts(path, tmp_path)
    assert (tmp_path / "meta.pt").read_bytes() == b"x" * 10
