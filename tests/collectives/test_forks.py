# SPDX-License-Identifier: Apache-2.0
"""A forked process, such as a loader's worker, does not free a process group of its parent, which would wait for ever."""

import subprocess
import sys

SCRIPT = """
import gc, os, signal, sys, time
import torch.distributed as dist
from lightning_sagemaker.collectives import forks

if sys.argv[1] == "guarded":
    forks.guard()
gc.disable()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.barrier()
cycle = [dist.group.WORLD]
cycle.append(cycle)
dist.destroy_process_group()
del cycle
child = os.fork()
if not child:
    gc.collect()
    os._exit(0)
deadline = time.monotonic() + float(sys.argv[2])
while os.waitpid(child, os.WNOHANG) == (0, 0):
    if time.monotonic() > deadline:
        os.kill(child, signal.SIGKILL)
        os._exit(3)
    time.sleep(0.02)
os._exit(0)
"""


def code(kind: str, patience: float) -> int:
    return subprocess.run([sys.executable, "-c", SCRIPT, kind, str(patience)], timeout=120).returncode


def test_a_child_that_collects_garbage_does_not_wait_for_its_parents_threads():
    # Seldom all of the parent's threads have ended by themselves before the fork.
    assert any(code("bare", 1.0) == 3 for _ in range(5)), "torch frees a group in a child: the guard is not needed"
    assert code("guarded", 30.0) == 0
