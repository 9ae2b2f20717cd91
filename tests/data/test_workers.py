# SPDX-License-Identifier: Apache-2.0
"""Worker processes outlive signals to stop, and nothing else."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lightning_sagemaker._compat.guard import NameGone
from lightning_sagemaker.data import workers
from lightning_sagemaker.data.workers import end_quickly, ignore_stop_signals, signals_held
from tests.conftest import is_contract_variable
from tests.forked import run_forked

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
PROGRAM = Path(__file__).with_name("workers_program.py")
CONTEXTS = ["fork", pytest.param("forkserver", marks=pytest.mark.slow), pytest.param("spawn", marks=pytest.mark.slow)]
FAST = 3.0
SOON = 10.0
"""Beside other tests; a sample takes a minute."""
"""Seconds: one on a machine with nothing else to do, and torch's own end takes five and more."""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, seconds: float = 60.0) -> float:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < seconds
        time.sleep(0.02)
    return time.monotonic() - begin


class Hanging(Dataset):
    """Of which all but the first eight samples take a minute."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index):
        time.sleep(60 if index >= 8 else 0)
        return torch.ones(1)


def ignore(worker: int) -> None:
    ignore_stop_signals()


def begin_late(worker: int) -> None:
    time.sleep(0.5)
    ignore_stop_signals()


def birth(context: str, count: int, persistent: bool = False, init=ignore):
    loader = DataLoader(
        Hanging(),
        num_workers=count,
        persistent_workers=persistent,
        multiprocessing_context=context,
        worker_init_fn=init,
    )
    with signals_held(loader.multiprocessing_context):
        return iter(loader)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize(("count", "persistent"), [(1, False), (3, False), (3, True)])
def test_workers_that_read_a_long_sample_end_at_once(context, count, persistent):
    iterator = birth(context, count, persistent)
    end_quickly(iterator)
    pids = [worker.pid for worker in iterator._workers]
    for _ in range(8):
        next(iterator)
    time.sleep(0.1)
    begin = time.monotonic()
    del iterator
    assert time.monotonic() - begin < SOON
    assert not any(map(is_alive, pids))


def test_workers_with_nothing_to_do_are_left_to_end_by_themselves():
    loader = DataLoader(torch.ones(8), num_workers=2, worker_init_fn=ignore)
    iterator = iter(loader)
    end_quickly(iterator)
    processes = iterator._workers
    assert len(list(iterator)) == 8
    assert all(process.exitcode in (0, -9) for process in processes)
    assert any(process.exitcode == 0 for process in processes)


def test_an_iterator_without_workers_is_left_alone():
    iterator = iter(DataLoader(torch.ones(2)))
    end_quickly(iterator)
    assert len(list(iterator)) == 2


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("number", workers.STOP_SIGNALS)
def test_signals_from_birth_on_do_not_end_workers(context, number):
    iterator = birth(context, 2, init=begin_late)
    end_quickly(iterator)
    for _ in range(10):
        for worker in iterator._workers:
            os.kill(worker.pid, number)
        time.sleep(0.08)
    assert next(iterator).shape == (1, 1)


def test_signals_are_held_for_the_training_process_no_longer_than_needed():
    arrived = []
    before = signal.signal(signal.SIGUSR1, lambda *_: arrived.append(True))
    try:
        with signals_held():
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            assert not arrived
        assert arrived
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("name", ["_workers", "_shutdown_workers"])
def test_a_torch_that_ends_workers_otherwise_is_refused(name):
    class Other(torch.utils.data.dataloader._MultiProcessingDataLoaderIter):
        def __init__(self) -> None:
            for kept in {"_workers", "_worker_pids_set"} - {name}:
                setattr(self, kept, [])

        def __del__(self) -> None:
            pass

        def __getattribute__(self, wanted):
            if wanted == name:
                raise AttributeError(wanted)
            return super().__getattribute__(wanted)

    with pytest.raises(NameGone, match=f"{name}.*HINT: "):
        end_quickly(Other())


class Training(threading.Thread):
    """The program, in a process of its own that has a group of its own."""

    def __init__(self, folder: Path, **options) -> None:
        super().__init__()
        self.folder = folder
        self.options = {"workers": 1, "context": "fork", "persistent": False, "mended": True, **options}
        self.code: int | None = None

    def run(self) -> None:
        clean = {name: value for name, value in os.environ.items() if not is_contract_variable(name)}
        command = [str(PROGRAM), str(self.folder), json.dumps(self.options)]
        self.code = run_forked(command, 0, {**clean, "OMP_NUM_THREADS": "1"}, self.folder / "output", timeout=120)
        self.ended = time.time()

    def begin(self) -> tuple[int, list[int]]:
        """The numbers of the training process, when it is under way, and of its workers."""
        self.start()
        wait_until(lambda: (self.folder / "step").exists() and (self.folder / "step").read_text())
        return int((self.folder / "step").read_text()), self.pids()

    def pids(self) -> list[int]:
        return json.loads((self.folder / "pids").read_text())

    def output(self) -> str:
        return (self.folder / "output").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=pytest.mark.slow)])
def test_a_signal_to_the_group_leaves_a_checkpoint(tmp_path, number):
    training = Training(tmp_path, workers=2)
    group, pids = training.begin()
    os.killpg(group, number)
    training.join()
    assert training.code == 143, training.output()
    assert len(list(tmp_path.glob("auto-step=*.ckpt"))) == 1
    assert not any(map(is_alive, pids))
    assert "killed by signal" not in training.output()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("context", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_a_training_process_ends_at_once(tmp_path, context, persistent):
    training = Training(tmp_path, workers=3, context=context, persistent=persistent, hangs_at=12, exits_at=3)
    training.start()
    training.join()
    assert training.code == 143, training.output()
    assert training.ended - float((tmp_path / "stopped").read_text()) < FAST
    assert not any(map(is_alive, training.pids()))
    assert "killed by signal" not in training.output()


@pytest.mark.parametrize("context", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_workers_end_when_the_training_process_is_killed(tmp_path, context):
    training = Training(tmp_path, workers=2, context=context)
    process, pids = training.begin()
    os.kill(process, signal.SIGKILL)
    training.join()
    assert wait_until(lambda: not any(map(is_alive, pids))) < FAST


@pytest.mark.slow
def test_torchrun_that_is_asked_to_stop_leaves_a_checkpoint(tmp_path):
    options = {"workers": 1, "context": "fork", "persistent": False, "mended": True, "strategy": "sagemaker"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    clean = {name: value for name, value in os.environ.items() if not is_contract_variable(name)}
    command = [*launcher, str(PROGRAM), str(tmp_path), json.dumps(options)]
    with subprocess.Popen(command, env={**clean, "OMP_NUM_THREADS": "1"}, start_new_session=True) as process:
        try:
            wait_until((tmp_path / "step").exists)
            process.terminate()
            process.wait(60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert len(list(tmp_path.glob("auto-step=*.ckpt"))) == 1
