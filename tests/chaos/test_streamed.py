# SPDX-License-Identifier: Apache-2.0
"""Rows streamed from a server with the API of S3 that cuts, breaks, refuses and alters what it sends."""

import errno
import logging
import multiprocessing
import os
import pickle
import threading
import time

import boto3
import numpy as np
import pytest
from botocore.config import Config

from lightning_sagemaker.data import block_index, block_store
from lightning_sagemaker.data.batches import TrainingBatches
from lightning_sagemaker.data.block_index import Content, index_shards, index_text, read_index
from lightning_sagemaker.data.block_store import BlockStore
from lightning_sagemaker.data.damage import DataReadError
from lightning_sagemaker.data.s3_objects import S3Objects
from lightning_sagemaker.data.streamed import StreamedRows
from tests.chaos.s3_server import Servers

LENGTH, ROWS = 16, (300, 1, 451, 97)
ADDRESS = "s3://corpus/some/shards"


@pytest.fixture(scope="module")
def servers():
    found = Servers()
    yield found
    found.close()


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("shards"), np.random.default_rng(0)
    names = {"": [], "-segments": []}
    for number, rows in enumerate(ROWS):
        for ending, shape in (("", (rows, LENGTH)), ("-segments", (rows,))):
            name = f"train-{number:05d}{ending}.npy"
            np.save(folder / name, random.integers(0, 60000, shape).astype(np.uint16))
            names[ending].append(name)
    return folder, {"train": list(names.values())}


@pytest.fixture
def index(shards, monkeypatch):
    monkeypatch.setattr(block_index, "BLOCK_BYTES", 1 << 11)  # 64 rows
    found = read_index(index_text(index_shards(*shards)))
    assert (found["train"].block, found["train"].blocks) == (64, 14)
    return found


@pytest.fixture
def bucket(servers, shards, monkeypatch):
    for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    client = boto3.client("s3", endpoint_url=servers.direct, config=Config(s3={"addressing_style": "path"}))
    client.create_bucket(Bucket="corpus")
    for file in shards[0].iterdir():
        client.upload_file(str(file), "corpus", f"some/shards/{file.name}")
    servers.faults.clear()
    servers.requests.clear()
    return client


def whole(shards, column):
    return np.concatenate([np.load(shards[0] / name) for name in shards[1]["train"][column]])


@pytest.fixture
def make(servers, index, tmp_path):
    def made(limit=1 << 30, deadline=120.0, timeout=20.0, folder=tmp_path / "cache"):
        return StreamedRows(ADDRESS, index, folder, limit, S3Objects(deadline, timeout, servers.endpoint))

    return made


def check(rows, shards, count=200, seed=0):
    indices = np.random.default_rng(seed).integers(0, sum(ROWS), count)
    assert np.array_equal(rows.read("train", 0, indices), whole(shards, 0)[indices])
    assert np.array_equal(rows.read("train", 1, indices)[:, 0], whole(shards, 1)[indices])


def test_rows_are_those_of_the_shards_and_each_block_comes_once(make, bucket, shards, servers):
    rows = make()
    for seed in range(3):
        check(rows, shards, seed=seed)
    assert rows.store.counts["blocks"] == 14
    fetched = len(servers.requests)
    check(make(), shards)  # another process of the host
    check(pickle.loads(pickle.dumps(rows)), shards)  # a loader that was spawned
    assert len(servers.requests) == fetched


@pytest.mark.parametrize(
    "fault", ["truncated", "503", "500", "drop", "flipped", "slow", "broken body", "expired", "skewed"]
)
def test_what_goes_wrong_for_a_while_is_not_noticed(fault, make, bucket, shards, servers):
    servers.faults += ["pass", fault, fault, "pass", fault]
    check(make(), shards)
    assert not servers.faults


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("missing", "train-00002.npy is missing"),
        ("short", "train-00002.npy is shorter than it was made"),
        ("flipped", "train-00002.npy.*block .* was made with crc32"),
    ],
)
def test_what_is_wrong_for_good_is_named(harm, words, make, bucket, shards, servers):
    key, content = "some/shards/train-00002.npy", (shards[0] / "train-00002.npy").read_bytes()
    if harm == "missing":
        bucket.delete_object(Bucket="corpus", Key=key)
    else:
        flipped = content[:9000] + bytes([content[9000] ^ 1]) + content[9001:]
        bucket.put_object(Bucket="corpus", Key=key, Body=content[:5000] if harm == "short" else flipped)
    rows = make()
    with pytest.raises(DataReadError, match=words) as error:
        check(rows, shards)
    assert "HINT:" in str(error.value)


@pytest.mark.parametrize(
    ("fault", "advice"),
    [
        ("drop", "look at the network"),
        ("503", "how many requests the prefix gets"),
        ("hang", "look at the network"),
        ("trickle", "look at the network"),
        ("expired", "the credentials have expired"),
        ("skewed", "this machine's clock is wrong; set it"),
    ],
)
def test_a_server_that_does_not_come_back_is_given_up(fault, advice, make, bucket, shards, servers):
    rows = make(deadline=2.0, timeout=0.5)
    rows.read("train", 0, np.array([500]))  # making a client takes longer than that on a slow machine
    servers.faults += [fault] * 200
    begin = time.monotonic()
    with pytest.raises(DataReadError, match=f"could not be had in .* attempts and 2 s.*HINT: .*{advice}"):
        rows.read("train", 0, np.array([5]))
    assert time.monotonic() - begin < 60
    servers.faults.clear()


def test_credentials_are_looked_up_again(make, bucket, shards, servers, monkeypatch):
    """The server refuses the first key; by then the environment has another, as a file of a profile would."""
    rows = make()
    servers.refused_key = "a"
    threading.Timer(0.5, lambda: os.environ.update(AWS_ACCESS_KEY_ID="renewed")).start()
    check(rows, shards)
    servers.refused_key = None


def test_a_small_store_holds_no_more_than_its_limit_and_is_right(bucket, shards, servers, index, tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_sagemaker.data.streamed.LEAST", 4)
    size = index["train"].offsets[-1]
    rows = StreamedRows(ADDRESS, index, tmp_path, 5 * size, S3Objects(120, 20, servers.endpoint))
    for seed in range(4):
        check(rows, shards, count=3, seed=seed)
    check(rows, shards)  # needs more blocks than there are slots
    files = [path.stat().st_size for path in tmp_path.rglob("blocks")]
    assert files == [5 * size]


def test_a_store_that_is_too_small_is_refused(make, bucket):
    with pytest.raises(ValueError, match="data.cache_gb=1e-06 was set.*HINT"):
        make(limit=1000)


def test_a_disk_that_is_full_is_said_once(make, bucket, shards, monkeypatch, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    rows = make()
    check(rows, shards, count=2)
    monkeypatch.setattr(block_store.os, "pwrite", full)
    with caplog.at_level(logging.WARNING):
        for seed in range(3):
            check(rows, shards, seed=seed)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("lightning_sagemaker")]
    assert len(said) == 1
    assert "takes no more blocks (No space left on device)" in said[0]


def _reader(rows, shards, seed, results):
    try:
        for number in range(30):
            check(rows, shards, count=20, seed=100 * seed + number)
        results.put(None)
    except BaseException as error:
        results.put(repr(error))


def test_processes_share_a_store_that_others_overwrite(bucket, shards, servers, index, tmp_path, monkeypatch):
    """Slots change hands all the time, and one process is killed in the midst of it."""
    monkeypatch.setattr("lightning_sagemaker.data.streamed.LEAST", 4)
    limit = 9 * index["train"].offsets[-1]
    rows = StreamedRows(ADDRESS, index, tmp_path, limit, S3Objects(120, 20, servers.endpoint))
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=_reader, args=(rows, shards, seed, results)) for seed in range(4)]
    for worker in workers:
        worker.start()
    time.sleep(1.0)
    workers[0].kill()
    found = [results.get(timeout=200) for _ in workers[1:]]
    assert found == [None] * 3
    for worker in workers:
        worker.join(10)


def eights(first, count, buffer):
    """Blocks that hold their number eight times."""
    buffer[:] = bytes(block for block in range(first, first + count) for _ in range(8))
    return [Content(((0, buffer[8 * place : 8 * place + 8]),)) for place in range(count)]


def test_a_slot_whose_writer_was_killed_is_used_again(tmp_path):
    store = BlockStore(tmp_path, 4, 8, 16, eights)
    assert store._table.claim(3, lambda _: False) == 0  # and never published
    for block in (0, 1, 2, 3):
        assert store.read(np.array([block]), lambda contents, numbers: contents[numbers].copy())[0, 0] == block
    assert sorted(slot for slot in store._table.slot_of if slot >= 0) == [0, 1]


def test_a_store_of_another_start_of_the_machine_is_emptied(tmp_path, monkeypatch):
    made = []

    def fetch(first, count, buffer):
        made.extend(range(first, first + count))
        return eights(first, count, buffer)

    BlockStore(tmp_path, 4, 8, 32, fetch).fetch([0, 1])
    BlockStore(tmp_path, 4, 8, 32, fetch).fetch([0, 1])
    assert sorted(made) == [0, 1]  # several are fetched at a time
    monkeypatch.setattr("lightning_sagemaker.data.block_table._boot", lambda: 5)
    BlockStore(tmp_path, 4, 8, 32, fetch).fetch([0])
    assert sorted(made) == [0, 0, 1]


def test_an_epoch_reads_each_byte_about_once_and_ahead(make, bucket, shards, servers, monkeypatch):
    monkeypatch.setattr("lightning_sagemaker.data.streamed.WINDOW", 4)
    rows = make()
    batches = TrainingBatches(sum(ROWS), 12, blocks=rows.blocks("train"))
    rows.look_ahead("train", batches)
    given = []
    for number, batch in enumerate(batches):
        if number == 3:
            time.sleep(2.0)
            ready = rows.store.counts["blocks"]
            assert 4 < ready < 14  # the next window, and not all
        given += batch
        rows.read("train", 0, np.array(batch))
    assert len(set(given)) == len(given) == sum(ROWS) // 12 * 12
    assert rows.store.counts["blocks"] == 14
