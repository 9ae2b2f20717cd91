# SPDX-License-Identifier: Apache-2.0
"""What goes wrong between S3 and training, one row each, as in docs/data.md: nothing wrong is trained on, nothing hangs."""

import contextlib
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_sagemaker.data.batches import TrainingBatches
from lightning_sagemaker.data.damage import DataReadError
from lightning_sagemaker.data.s3_objects import S3Objects
from lightning_sagemaker.data.streamed import StreamedRows
from tests.chaos.s3_server import Servers
from tests.chaos.streamed_case import ADDRESS, ROWS, whole

FOR_A_WHILE = ("truncated", "503", "500", "drop", "flipped", "slow", "broken body", "expired", "skewed")
SHARD = "train-00002.npy"
MOUNT = "mounting needs root"


@dataclass
class Case:
    """What a fault is made of.

    Args:
        servers: Of S3.
        bucket: A client of it, past the faults.
        shard: Content of a shard as it was made.
        folder: Of the store.

    """

    servers: Servers
    bucket: Any
    shard: bytes
    folder: Path


@dataclass(frozen=True)
class Fault:
    """A row of the table; docs/data.md has the same.

    Args:
        begin: Makes it.
        words: Of the sentence with which the epoch ends; None where it goes on.
        said: In the log, once, where it goes on.
        lost: Damaged blocks, which are replaced; without any, damage is an error.
        deadline: Seconds for a read.

    """

    begin: Callable[[Case], None]
    words: str | None = None
    said: str | None = None
    lost: Sequence[int] = ()
    deadline: float = 60.0


def answers(*faults):
    """To the next requests."""
    return lambda case: case.servers.faults.extend(faults)


def changed(content):
    """The shard in S3 is what ``content`` makes of it, or gone."""

    def begin(case):
        key, body = f"some/shards/{SHARD}", content(case.shard)
        if body is None:
            case.bucket.delete_object(Bucket="corpus", Key=key)
        else:
            case.bucket.put_object(Bucket="corpus", Key=key, Body=body)

    return begin


def refused_until(seconds):
    """The server refuses the key; then the environment has another, as a file of a profile would."""

    def begin(case):
        case.servers.refused_key = "a"
        threading.Timer(seconds, lambda: os.environ.update(AWS_ACCESS_KEY_ID="renewed")).start()

    return begin


def clock_wrong_until(seconds):
    def begin(case):
        case.servers.clock = 1200.0
        threading.Timer(seconds, vars(case.servers).update, kwargs={"clock": 0.0}).start()

    return begin


def fill_disk(case):
    """Something else takes all that is left of it; the store has a part of the blocks by then."""
    with contextlib.suppress(OSError), (case.folder / "other").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))


def missing(content):
    return None


def short(content):
    return content[:5000]


def flipped(content):
    return content[:9000] + bytes([content[9000] ^ 1]) + content[9001:]


REPLACED = r"training on another block instead \(1 blocks so far"
FAULTS = {
    **{f"{fault} for a while": Fault(answers("pass", fault, fault, "pass", fault)) for fault in FOR_A_WHILE},
    "credentials are renewed": Fault(refused_until(0.5)),
    "the clock is set": Fault(clock_wrong_until(0.5)),
    "drop for ever": Fault(answers(*["drop"] * 500), "check the network", deadline=1.0),
    "503 for ever": Fault(answers(*["503"] * 500), "request rate of the prefix", deadline=1.0),
    "hang for ever": Fault(answers(*["hang"] * 500), "check the network", deadline=1.0),
    "trickle for ever": Fault(answers(*["trickle"] * 500), "check the network", deadline=1.0),
    "credentials are not renewed": Fault(refused_until(90.0), "the credentials have expired", deadline=1.0),
    "the clock is not set": Fault(clock_wrong_until(90.0), "this machine's clock is wrong; set it", deadline=1.0),
    "missing": Fault(changed(missing), f"{SHARD} is missing"),
    "short": Fault(changed(short), f"{SHARD} is truncated"),
    "corrupt": Fault(changed(flipped), f"{SHARD}.*block .* was written with crc32"),
    "missing, skipped": Fault(changed(missing), said=REPLACED, lost=range(4, 12)),
    "short, skipped": Fault(changed(short), said=REPLACED, lost=range(7, 12)),
    "corrupt, skipped": Fault(changed(flipped), said=REPLACED, lost=[9]),
    "the disk is full": Fault(fill_disk, said=r"cannot store more blocks \(No space left on device\)"),
}


@pytest.fixture
def small_disk(tmp_path):
    """A file system with room for some of the blocks."""
    if os.geteuid():
        pytest.skip(MOUNT)
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", folder], check=False).returncode:
        pytest.skip("mounting is not permitted")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_wrong_is_trained_on_and_nothing_hangs(name, request, bucket, shards, servers, index, tmp_path, caplog):
    fault = FAULTS[name]
    folder = request.getfixturevalue("small_disk") if fault.begin is fill_disk else tmp_path
    objects = S3Objects(fault.deadline, min(20.0, fault.deadline / 2), servers.endpoint)
    objects.connect()  # takes longer than some deadlines on a slow machine
    rows = StreamedRows(ADDRESS, index, folder / "store", 1 << 30, objects, bool(fault.lost))
    if fault.begin is fill_disk:
        rows.read("train", 0, np.array([0]))
    fault.begin(Case(servers, bucket, (shards[0] / SHARD).read_bytes(), folder))
    begin = time.monotonic()
    try:
        if fault.words is None:
            read_epoch(rows, shards, fault.lost)
        else:
            with pytest.raises(
                DataReadError, match=f"{fault.words}.*" if "HINT" in fault.words else fault.words
            ) as error:
                read_epoch(rows, shards, ())
            assert "HINT:" in str(error.value)
    finally:
        servers.faults.clear()
        servers.refused_key, servers.clock = None, 0.0
    assert time.monotonic() - begin < 60
    if fault.said:
        said = [one.getMessage() for one in caplog.records if re.search(fault.said, one.getMessage())]
        assert len(said) == 1


def read_epoch(rows, shards, damaged):
    """All batches, as training reads them: each row is as it was made, or, of a damaged block, one of another."""
    batches = TrainingBatches(sum(ROWS), 12, blocks=rows.blocks("train"))
    rows.look_ahead("train", batches)
    made = np.concatenate([whole(shards, 0), whole(shards, 1)[:, None]], axis=1)
    intact = {tuple(row) for number, row in enumerate(made.tolist()) if number // 64 not in damaged}
    for batch in batches:
        indices = np.array(batch)
        found = np.concatenate([rows.read("train", 0, indices), rows.read("train", 1, indices)], axis=1)
        for number, row in zip(batch, found.tolist(), strict=True):
            assert tuple(row) in intact if number // 64 in damaged else row == made[number].tolist()


def test_a_disk_that_is_full_from_the_start_is_one_sentence(small_disk, index, bucket):
    (small_disk / "other").write_bytes(bytes(128 << 10))
    with pytest.raises(
        DataReadError, match=r"cannot be written \(No space left on device\)\. HINT: set data.cache_dir"
    ):
        StreamedRows(ADDRESS, index, small_disk / "store", 1 << 30)


def operations(folder):
    """What the package does with S3, by name."""
    file = folder / "file"
    file.write_bytes(b"x" * 1000)
    return {
        "read": lambda objects: objects.read("corpus", "one"),
        "a range": lambda objects: objects.read_into("corpus", "one", 0, memoryview(bytearray(1000))),
        "checksum": lambda objects: objects.checksum("corpus", "one"),
        "list": lambda objects: objects.list_objects("corpus", "one"),
        "upload": lambda objects: objects.upload(file, "corpus", "one", "c"),
    }


NAMES = ("read", "a range", "checksum", "list", "upload")
FINAL = ("403 AccessDenied", "400 KMS.DisabledException", "403 InvalidObjectState", "400 InvalidRequest")


@pytest.mark.parametrize("name", NAMES)
def test_credentials_are_renewed_whatever_is_requested(name, servers, bucket, tmp_path):
    """A response to HEAD does not say that they have expired, and boto3 wraps the error of an upload."""
    operation = operations(tmp_path)[name]
    bucket.put_object(Bucket="corpus", Key="one", Body=b"x" * 1000, Metadata={"crc32": "c"})
    objects = S3Objects(30.0, 10.0, servers.endpoint)
    refused_until(0.5)(Case(servers, bucket, b"", tmp_path))
    try:
        operation(objects)
    finally:
        servers.refused_key = None


@pytest.mark.parametrize("fault", FINAL)
@pytest.mark.parametrize("name", NAMES)
def test_what_a_retry_cannot_fix_is_an_error_at_once(name, fault, servers, bucket, tmp_path):
    """With S3's reason, instead of advice about the network after two minutes."""
    operation = operations(tmp_path)[name]
    bucket.put_object(Bucket="corpus", Key="one", Body=b"x" * 1000)
    servers.faults[:] = [fault] * 100
    said = "written" if name == "upload" else "read"
    try:
        with pytest.raises(
            DataReadError, match=f"s3://corpus/one cannot be {said} .{fault.split()[1]}:.*HINT: the role"
        ):
            operation(S3Objects(30.0, 10.0, servers.endpoint))
        assert len(servers.faults) > 95
    finally:
        servers.faults.clear()


@pytest.mark.parametrize("fault", ["429 TooManyRequests", "400 RequestTimeout", "409 OperationAborted", "503 SlowDown"])
@pytest.mark.parametrize("name", NAMES)
def test_what_passes_is_tried_again(name, fault, servers, bucket, tmp_path):
    operation = operations(tmp_path)[name]
    bucket.put_object(Bucket="corpus", Key="one", Body=b"x" * 1000)
    servers.faults[:] = [fault]
    operation(S3Objects(30.0, 10.0, servers.endpoint))
    assert servers.faults == []
