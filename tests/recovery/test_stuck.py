# SPDX-License-Identifier: Apache-2.0
"""A process that is still in a collective long after it was aborted exits; one that computes goes on."""

import subprocess
import sys

import pytest

from lightning_sagemaker.simulator.hosts import free_port

SCRIPT = """
import contextlib, os, sys, time
import torch.distributed as dist
from lightning_sagemaker.recovery.stuck import exit_if_stuck

port, does = sys.argv[1:]
rank = 0 if os.fork() else 1
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
if rank == 1:
    time.sleep(4)  # and joins no collective
    os._exit(0)
exit_if_stuck(lambda: does == "left", patience=1.0)
if does == "computes":
    time.sleep(2.5)
else:
    with contextlib.suppress(RuntimeError):  # at last rank 1 ends
        dist.barrier()
print("goes on", flush=True)
os._exit(0)
"""

GROUP = """
import sys, threading, time
import torch.distributed as dist
from lightning_sagemaker.recovery import group, stuck

stuck.exit_if_stuck.__defaults__ = (1.0,)
one = group.QuorumGroup("127.0.0.1")
one.form("gloo", 1, 0, [one.info])
# Stands in for the destructor of torch's group, which waits for a thread that gloo does not wake.
code = "def destroy_process_group(): sleep(seconds)"
exec(code, vars(dist.distributed_c10d) | {"sleep": time.sleep, "seconds": float(sys.argv[1])}, made := {})
dist.destroy_process_group = made["destroy_process_group"]
threading.Thread(target=one.leave).start()
one.dissolve()
print("goes on", flush=True)
"""


@pytest.mark.parametrize(("seconds", "code"), [(30, 1), (0, 0)])
def test_a_process_whose_group_does_not_end_exits(seconds, code):
    done = subprocess.run([sys.executable, "-c", GROUP, str(seconds)], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert ("a collective has not ended" in done.stderr) == (code == 1)
    assert ("goes on" in done.stdout) == (code == 0)


@pytest.mark.parametrize(
    ("does", "code", "says"), [("waits", 1, "a collective has not ended"), ("computes", 0, ""), ("left", 0, "")]
)
def test_a_process_in_an_aborted_collective_exits(does, code, says):
    command = [sys.executable, "-c", SCRIPT, str(free_port()), does]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.wait(60) == code
        assert process.stdout is not None
        assert process.stderr is not None
        assert says in process.stderr.read()
        assert ("goes on" in process.stdout.read()) == (code == 0)
