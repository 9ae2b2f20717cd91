# SPDX-License-Identifier: Apache-2.0
"""A process that is forked beside gloo's threads leaves its fork. ``forks_worker.py`` does it any number of times."""

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lightning_sagemaker.collectives import forks
from tests.conftest import read_ranks, torchrun

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(not forks._IS_AFFECTED, reason="from Python 3.12 on nothing waits at a fork")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("a C compiler (cc) not found")
    path = tmp_path_factory.mktemp("widen") / "widen.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, HERE / "widen.c", "-ldl"], check=True, timeout=60)
    return path


FOREIGN = """
import ctypes, os, signal, sys, time
from lightning_sagemaker.collectives import forks
if sys.argv[1] == "guarded":
    forks.guard()
libc, hung = ctypes.CDLL(None), 0
body = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: None)
for _ in range(10):
    thread = ctypes.c_ulong()
    libc.pthread_create(ctypes.byref(thread), None, body, None)
    time.sleep(0.002)
    child = os.fork()
    if not child:
        os._exit(0)
    deadline = time.monotonic() + 3
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            sys.exit("hung")
        time.sleep(0.001)
    libc.pthread_join(thread, None)
"""


@pytest.mark.parametrize(("guard", "outcome"), [("guarded", ""), ("unguarded", "hung\n")])
def test_beside_a_thread_that_python_did_not_start(library, guard, outcome):
    command = [sys.executable, "-c", FOREIGN, guard]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "LD_PRELOAD": str(library)}
    )
    assert done.stderr == outcome


@pytest.mark.slow
@pytest.mark.parametrize("guard", [(), ("unguarded",)])
def test_beside_collectives_votes_heartbeats_and_checkpoints(library, tmp_path, guard):
    count = 2000 if guard else 150  # it ends at the first child that hangs
    torchrun(HERE / "forks_worker.py", tmp_path, count, *guard, processes=2, LD_PRELOAD=str(library))
    ranks = read_ranks(tmp_path)
    assert sum(rank["widened"] for rank in ranks) > 0
    assert {rank["hung"] for rank in ranks} == {bool(guard)}


def test_a_thread_that_never_sleeps_is_not_waited_for_long():
    stop = threading.Event()

    def compute():
        while not stop.is_set():
            hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)  # without Python's lock

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        assert forks._others_run()
        begin = time.monotonic()
        forks._settle()
        assert 0.5 * forks._TIME_LIMIT < time.monotonic() - begin < 10 * forks._TIME_LIMIT
    finally:
        stop.set()
        thread.join()


def test_without_proc_nothing_is_waited_for(monkeypatch):
    monkeypatch.setattr(forks, "_TASKS", "/nowhere")
    assert not forks._others_run()


def test_a_strategy_guards_its_forks_once():
    code = (
        "import os; calls = []; os.register_at_fork = lambda **given: calls.append(given)\n"
        "import lightning_sagemaker; from lightning.pytorch import Trainer\n"
        "strategy = Trainer(strategy='sagemaker', accelerator='cpu', devices=1, logger=False).strategy\n"
        "before = len(calls); strategy.setup_environment(); strategy.setup_environment()\n"
        "print([list(call) for call in calls[before:]])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[-2] == "[['after_in_child'], ['before']]", done.stderr
