# SPDX-License-Identifier: Apache-2.0
"""Forks beside collectives, votes, heartbeats and checkpoints; counts the children that never leave their fork.

``forks_worker.py FOLDER FORKS [unguarded]`` under a launcher; ends at the first child that hangs.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

from lightning_sagemaker.callbacks.heartbeat import Heartbeat
from lightning_sagemaker.collectives import forks
from lightning_sagemaker.collectives.async_max import AsyncMaxReduce

PATIENCE = 10.0
"""Seconds; a child has nothing to do but to leave."""


def fork_once() -> bool:
    """Whether the child left."""
    child = os.fork()
    if not child:
        os._exit(0)
    deadline = time.monotonic() + PATIENCE
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
        time.sleep(0.0002)
    return True


def collect(number: int) -> None:
    """A collective whose tensor Python gives up at once."""
    if number % 3:
        dist.all_reduce(torch.ones(1))
    else:
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    if number % 50 == 0:
        dist.broadcast_object_list([number])


def main(folder: Path, count: int, is_guarded: bool) -> None:
    if is_guarded:
        forks.guard()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    votes, heartbeat = AsyncMaxReduce.of_all(), Heartbeat(every=0.01)
    heartbeat.setup(SimpleNamespace(strategy=None), None, "fit")
    made, hung, seconds = 0, torch.zeros(1), 0.0
    for number in range(count):
        collect(number)
        if number % 10 == 0:
            votes.wait()
            votes.start([float(number)])
        if number % 500 == 0:
            threading.Thread(target=torch.save, args=(torch.ones(100_000), folder / f"{rank}.ckpt")).start()
        begin = time.perf_counter()
        hung += not fork_once()
        seconds += time.perf_counter() - begin
        made += 1
        if number % 10 == 0:
            dist.all_reduce(hung, dist.ReduceOp.MAX)
            if hung:
                break
    heartbeat.teardown(None, None, "fit")
    widened = ctypes.c_long.in_dll(ctypes.CDLL(None), "widened").value if "LD_PRELOAD" in os.environ else 0
    result = {"forks": made, "hung": bool(hung), "seconds": seconds / made, "widened": widened}
    (folder / f"rank-{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] != ["unguarded"])
