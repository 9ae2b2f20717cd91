# SPDX-License-Identifier: Apache-2.0
"""Runs several sample scripts in one simulated job, one after the other: ``every.py OUT SCRIPT[:ARGUMENT] ...``.

Each rank has a process of its own for each script, forked before anything of a job is set up, and each script a port of its
own, which the first rank finds. An exception is reported in the place of what the script would have.
"""

import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

import lightning.pytorch  # noqa: F401 - once for all scripts
import torch.distributed

HERE, OUT = Path(__file__).parent, Path(sys.argv[1])
RANK = os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))
TIME_LIMIT = 150
sys.path.insert(0, str(HERE))


def find_port(number: int) -> str:
    """A free one, the same on all ranks."""
    place = OUT / f"port-{number}"
    if RANK == "0":
        with socket.socket() as free:
            free.bind(("", 0))
            part = place.with_suffix(".part")
            part.write_text(str(free.getsockname()[1]))
        part.replace(place)
    while not place.exists():
        time.sleep(0.05)
    return place.read_text()


def run(number: int, name: str, argument: str) -> None:
    report = OUT / f"{name}{argument}" / f"rank-{RANK}.json"
    report.parent.mkdir(parents=True, exist_ok=True)
    os.environ |= {
        "SAMPLE_REPORT": str(report),
        "MASTER_PORT": find_port(number),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    sys.argv = [f"{name}.py", *filter(None, [argument])]
    try:
        runpy.run_path(str(HERE / f"{name}.py"), run_name="__main__")
        if torch.distributed.is_initialized():
            torch.distributed.barrier()  # a rank that is gone would take its store along
    except Exception as error:
        traceback.print_exc()
        report.write_text(json.dumps({"error": f"{type(error).__name__}: {error}"}))


for number, script in enumerate(sys.argv[2:], start=1):
    child = os.fork()
    if not child:
        signal.alarm(TIME_LIMIT)  # a rank that waits for one that has failed
        name, _, argument = script.partition(":")
        run(number, name, argument)
        sys.stdout.flush()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        sys.exit(f"{script} ended with {code}")
