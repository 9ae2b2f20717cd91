# SPDX-License-Identifier: Apache-2.0
"""A rank that waits for its loader says so, once for each batch, and not when it does something else."""

import multiprocessing
import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader

from lightning_sagemaker.callbacks.loader_watch import LoaderWatch


class Slow:
    def __init__(self, seconds=1.0):
        self.seconds = seconds

    def __len__(self):
        return 2

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.ones(1)


@pytest.fixture
def watched():
    watch, over = LoaderWatch(3, 0.3), threading.Event()

    def look():
        while not over.wait(0.05):
            watch.look()

    thread = threading.Thread(target=look)
    thread.start()
    yield watch
    over.set()
    thread.join()


@pytest.mark.parametrize("workers", [0, 1])
def test_each_slow_batch_is_said_once(watched, capsys, workers):
    before = {worker.pid for worker in multiprocessing.active_children()}  # of loaders of other tests
    for _ in DataLoader(Slow(), num_workers=workers):
        watched.next_batch()
        pids = [worker.pid for worker in multiprocessing.active_children() if worker.pid not in before]
    said = capsys.readouterr().err
    assert 1 <= said.count("rank 3 has waited 0 s for the next batch of its data loader") <= 2, said
    for pid in pids or ([] if before else ["PID"]):
        assert f"py-spy dump --pid {pid}" in said


def test_a_long_step_is_not_the_loaders_fault(watched, capsys):
    for _ in DataLoader(Slow(0.15)):
        watched.next_batch()
        time.sleep(0.6)
    assert capsys.readouterr().err == ""
