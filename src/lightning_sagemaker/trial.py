# SPDX-License-Identifier: Apache-2.0
"""What every run needs, done once in small: what would end a run ends a process of a few seconds, and is said.

Each trial is a program of its own (``python -m lightning_sagemaker.trial NAME``), so that one which crashes or hangs
does neither to whoever asked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from lightning_sagemaker.preflight import unusable_shared_memory
from lightning_sagemaker.simulator.hosts import free_port, own_environment

TIME_LIMIT = 90.0
"""Seconds for one trial; the slowest takes about five where importing torch takes two."""

_PROCESSES = 2
_ELEMENTS = 2**16
_PROBLEM = "problem: "
_NEXT = "next: "
"""Before what is tried: the last one is what did not come back."""


@dataclass(frozen=True)
class Trial:
    """What came of one.

    Attributes:
        what: What was done.
        seconds: How long it took, starting Python and importing torch included.
        problems: A sentence for each thing that is wrong; empty if it works.

    """

    what: str
    seconds: float
    problems: list[str]


@dataclass(frozen=True)
class _Kind:
    what: str
    processes: int
    hint: str


KINDS = {
    "processes": _Kind(
        "two processes reduce a tensor",
        _PROCESSES,
        "check that 127.0.0.1 is reachable, that this machine's host name resolves (/etc/hosts), and that"
        " GLOO_SOCKET_IFNAME, if set, names an interface",
    ),
    "loader": _Kind(
        "a loader worker passes a batch",
        1,
        "check the permissions and the size of /dev/shm (Docker: --shm-size=1g), the process limit (ulimit -u) and the"
        " length of TMPDIR (70 characters at most), or train with num_workers=0",
    ),
    "environments": _Kind(
        "Lightning's environments answer", 1, "uninstall or repair what one of them imports (mpi4py)"
    ),
}


def try_all() -> Iterator[Trial]:
    """Do each; none takes longer than the time limit, nor leaves a process."""
    for name in KINDS:
        yield _try(name, TIME_LIMIT)


def _try(name: str, limit: float) -> Trial:
    kind, begin = KINDS[name], time.monotonic()
    try:
        port = free_port()
    except OSError as error:
        return Trial(
            kind.what, 0.0, [f"{kind.what}: 127.0.0.1 has no port ({error.strerror}). HINT: ip link set lo up."]
        )
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(kind.processes)}
    started = [_start(name, variables | {"RANK": str(rank)}) for rank in range(kind.processes)]
    problems: list[str] = []
    for process in started:
        with _ended(process):
            problems += _outcome(process, kind, max(0.1, begin + limit - time.monotonic()), limit)
    return Trial(kind.what, time.monotonic() - begin, list(dict.fromkeys(problems)))


def _command(name: str) -> list[str]:
    return [sys.executable, "-m", __spec__.name, name]


def _start(name: str, variables: dict[str, str]) -> subprocess.Popen[str]:
    pipe, errors = subprocess.PIPE, subprocess.STDOUT
    environment = {"OMP_NUM_THREADS": "1"} | own_environment() | variables
    return subprocess.Popen(
        _command(name), env=environment, stdout=pipe, stderr=errors, text=True, errors="replace", start_new_session=True
    )


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """After the block, the process and its children have exited."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        process.communicate()


def _outcome(process: subprocess.Popen[str], kind: _Kind, wait: float, limit: float) -> list[str]:
    try:
        text, _ = process.communicate(timeout=wait)
    except subprocess.TimeoutExpired:
        return [f"{kind.what}: timed out after {limit:.0f} seconds. HINT: {kind.hint}."]
    lines = [line for line in text.splitlines() if line.strip()]
    named = [line.removeprefix(_PROBLEM) for line in lines if line.startswith(_PROBLEM)]
    if named or process.returncode == 0:
        return named
    where = [f" in {line.removeprefix(_NEXT)}" for line in lines if line.startswith(_NEXT)][-1:]
    last = next((line.strip() for line in reversed(lines) if not line.startswith(_NEXT)), "no output")
    return [f"{kind.what}: ended{''.join(where)} with exit code {process.returncode} ({last}). HINT: {kind.hint}."]


def _processes() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensor = torch.full((_ELEMENTS,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor)
    expected = sum(range(1, dist.get_world_size() + 1))
    if not torch.equal(tensor, torch.full_like(tensor, expected)):
        raise ArithmeticError(f"the sum is {tensor[0].item()} and should be {expected}")
    dist.destroy_process_group()


def _loader() -> None:
    if (problem := unusable_shared_memory()) is not None:
        print(f"{_PROBLEM}{problem}")
        return
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(torch.ones(4, _ELEMENTS)), batch_size=4, num_workers=1)
    ((batch,),) = loader
    if batch.sum() != 4 * _ELEMENTS:
        raise ArithmeticError("the batch is not what was sent")


def _environments() -> None:
    from lightning_sagemaker._compat.accelerator_connector import ask_environments
    from lightning_sagemaker.strategies.machine import broken_environment

    for kind, ask in ask_environments():
        print(f"{_NEXT}{kind.__name__}", flush=True)
        if (error := ask()) is not None:
            print(f"{_PROBLEM}{broken_environment(kind, error)}")


if __name__ == "__main__":
    {"processes": _processes, "loader": _loader, "environments": _environments}[sys.argv[1]]()
