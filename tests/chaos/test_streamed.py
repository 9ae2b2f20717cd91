# SPDX-License-Identifier: Apache-2.0
"""Rows streamed from a server with the API of S3, by processes that share a store."""

import multiprocessing
import pickle
import time

import numpy as np
import pytest

from lightning_sagemaker.data.batches import TrainingBatches
from lightning_sagemaker.data.block_index import Content
from lightning_sagemaker.data.block_store import BlockStore
from lightning_sagemaker.data.s3_objects import S3Objects
from lightning_sagemaker.data.streamed import StreamedRows
from tests.chaos.streamed_case import ADDRESS, ROWS, whole


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
