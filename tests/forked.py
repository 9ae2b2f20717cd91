# SPDX-License-Identifier: Apache-2.0
"""Starts test programs as ``python`` and ``torchrun`` do, from a process that has imported the large packages before.

Importing torch, Lightning and transformers takes a process longer than most tests. So one process does, without running
anything in them or importing this package, and forks: a child for each program, and its ranks, by the elastic launcher that
torchrun is. Tests that are about launchers start real ones.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

_deadline: list[float] = []
IMPORTED = ("torch.distributed.run", "lightning.pytorch", "torchmetrics", "transformers.models.bert.modeling_bert")


def run_forked(
    command: list[str], processes: int, environment: dict[str, str], output: Path, timeout: float
) -> int | None:
    """Run a script; return its exit code, None if it was killed because it outlasted ``timeout`` seconds.

    Args:
        command: Script, or ``-m`` and a module, and arguments.
        processes: As many ranks; 0 for a process on its own.
        environment: All variables.
        output: File of what is printed.
        timeout: Seconds.

    """
    server = _server()
    request = {"command": command, "processes": processes, "environment": environment, "output": str(output)}
    request |= {"timeout": timeout, "folder": os.getcwd()}
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        answer: int | None = json.loads(server.stdout.readline())
    except BaseException:  # its answer would be taken for the next one's
        server.terminate()
        _server.cache_clear()
        raise
    return answer


@cache
def _server() -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    pipe = subprocess.PIPE
    server = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, text=True, env=environment)
    atexit.register(server.terminate)
    return server


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for name in IMPORTED:
        importlib.import_module(name)
    let_workers_end()
    _let_groups_end()
    gc.collect()
    gc.freeze()  # a child's collections would write to, and so copy, the memory of all that was imported
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            _become(request)
        signal.signal(signal.SIGTERM, lambda *_, child=child: (_kill(child), os._exit(143)))
        code = _wait(child, request["timeout"])
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # its number may be another's now
        answers.write(json.dumps(code) + "\n")
        answers.flush()


def let_workers_end() -> None:
    """A worker whose iterator the garbage collector found, in a cycle, is killed after a second, not after 5.

    The collector closes the queue by which it would be told to end.
    """
    if (module := sys.modules.get("torch.utils.data._utils")) is not None:
        module.MP_STATUS_CHECK_INTERVAL = 1.0


def _let_groups_end() -> None:
    """Torch before 2.8 may hang where a group is destroyed right after a collective: see collectives/clean_exit.py."""
    import torch
    from torch import distributed

    if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8):
        return
    destroy = distributed.destroy_process_group

    def after_a_pause(*arguments: Any, **options: Any) -> None:
        time.sleep(0.01)
        destroy(*arguments, **options)

    distributed.destroy_process_group = after_a_pause


def _wait(child: int, timeout: float) -> int | None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    _kill(child)
    os.waitpid(child, 0)
    return None


def _kill(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # the ranks are in its group


def _become(request: dict[str, Any]) -> None:
    """What this process does from here on; it does not return."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(output, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _deadline[:] = [time.monotonic() + request["timeout"]]
    code = 1
    try:
        _launch(request["command"], request["processes"])
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)


def _as_hosts(rank: str, world: str) -> dict[str, str]:
    """Each rank a host of its own, with the one GPU; nccl refuses one device twice on a host, and asks this name for it."""
    place = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": rank, "GROUP_WORLD_SIZE": world}
    return {**place, "NCCL_HOSTID": f"host-{rank}", "NCCL_SOCKET_IFNAME": "lo"}


def _launch(command: list[str], processes: int) -> None:
    if not processes:
        _run(command)
        return
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = (
        "1"  # it asks for GPUs, and ranks could not use one that had been begun
    )

    config = LaunchConfig(1, 1, processes, rdzv_backend="c10d", rdzv_endpoint="localhost:0", start_method="fork")
    config.max_restarts, config.monitor_interval = int(os.environ.get("TEST_MAX_RESTARTS", "0")), 0.1
    elastic_launch(config, _run)(command)


def _run(command: list[str]) -> None:
    left = _deadline[0] - time.monotonic()
    faulthandler.dump_traceback_later(max(1.0, 0.9 * left), file=sys.__stderr__)  # where it hangs, before it is killed
    if os.environ.get("LIGHTNING_SAGEMAKER_TEST_ACCELERATOR") == "cuda" and "RANK" in os.environ:
        os.environ.update(_as_hosts(os.environ["RANK"], os.environ["WORLD_SIZE"]))
    is_module = command[0] == "-m"
    sys.argv[:] = command[is_module:]
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [os.getcwd() if is_module else str(Path(command[0]).resolve().parent), *filter(None, own)]
    if is_module:
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    _serve()
