# SPDX-License-Identifier: Apache-2.0
"""Starts the training of program.py in each way that users have, on a machine that is made to be otherwise.

The machine is this one with namespaces, mounts and limits of its own, which end with the run; its processes are in a process
namespace, so that none survives. Needs root.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from lightning_sagemaker.simulator.hosts import free_port
from tests.conftest import ROOT, is_contract_variable

PROGRAM = Path(__file__).with_name("program.py")
TIME_LIMIT = 240.0
LAST_LINES = 60
"""Two ranks' tracebacks, and what torchrun writes after them."""
ROUNDING = 1e-5
"""Without /proc/cpuinfo torch takes other kernels, which add in another order."""

RIGHT, SENTENCE = "same loss", "one sentence"
STARTS = ("one process", "torchrun", "Trainer(devices=2)", "local")
"""How two processes are started: by torchrun, by Lightning itself, as two simulated hosts."""


@dataclass(frozen=True)
class Condition:
    """How a machine is otherwise.

    Attributes:
        name: In the table.
        prepare: Shell, run as root in namespaces of its own before the training; ``$FOLDER`` is that of the run.
        inside: Command before the training's, such as ``prlimit --nofile=256``.
        unshare: Further options of ``unshare``.
        variables: Of the environment; None takes one away.
        outcomes: By start, where it is not the same loss.
        folder: Name of the run's folder.
        after: Shell, run as root after the training.
        simulated: What is not as on a real machine.

    """

    name: str
    prepare: str = ":"
    inside: str = ""
    unshare: tuple[str, ...] = ()
    variables: dict[str, str | None] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    folder: str = "run"
    after: str = ":"
    simulated: str = ""

    def outcome(self, start: str) -> str:
        """What is to come of a start."""
        return self.outcomes.get(start, self.outcomes.get("all", RIGHT))


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        returncode: None if it was stopped after the time limit.
        output: All that it wrote.
        result: What rank zero wrote at its end; None if it did not.

    """

    returncode: int | None
    output: str
    result: dict | None

    def outcome(self, plain: Ended | None) -> str:
        """``same loss``, ``one sentence``, or what is wrong, compared to a run on the machine as it is."""
        if self.returncode is None:
            return "hangs"
        if self.returncode == 0:
            if self.result is None:
                return "no result"
            same = plain is None or math.isclose(self.result["loss"], plain.result["loss"], rel_tol=ROUNDING)
            return RIGHT if same else f"the loss is {self.result['loss']} and not {plain.result['loss']}"
        last = "\n".join(self.output.rstrip().splitlines()[-LAST_LINES:])
        return SENTENCE if "HINT: " in last else "no sentence"


def can_make_machines() -> bool:
    """Whether this user may make namespaces and mounts."""
    tried = ["unshare", "--mount", "--pid", "--fork", "true"]
    return shutil.which(tried[0]) is not None and subprocess.run(tried, capture_output=True).returncode == 0


def command(start: str, folder: Path, program: Path) -> list[str]:
    """The training of ``start``."""
    python, training = sys.executable, [str(program), str(folder)]
    if start == "one process":
        return [python, *training]
    if start == "torchrun":
        launcher = [python, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
        return [*launcher, *training]
    if start == "Trainer(devices=2)":
        return [python, *training, "--devices", "2"]
    return [python, "-m", "lightning_sagemaker.cli", "local", "--root", str(folder / "job"), "--", python, *training]


def run(condition: Condition, start: str, place: Path) -> Ended:
    """Train under ``condition``.

    Args:
        condition: Of the machine.
        start: One of :data:`STARTS`.
        place: A folder of this run's own.

    """
    folder = place / condition.folder
    source = folder / "source"
    source.mkdir(parents=True)
    (folder / "result").mkdir()
    program = Path(shutil.copy(PROGRAM, source))
    script = (
        f'set -e; {condition.prepare}\ncd "$SOURCE"\n'
        f'set +e; {condition.inside} "$@"\ncode=$?\n{condition.after}\nexit $code\n'
    )
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *condition.unshare]
    words = [*namespaces, "--", "sh", "-c", script, "sh", *command(start, folder / "result", program)]
    with (
        (place / "output").open("w+", errors="replace") as output,
        tempfile.TemporaryDirectory(prefix="m", dir="/tmp", ignore_cleanup_errors=True) as temporary,
    ):
        os.chmod(
            temporary, 0o1777
        )  # of its own: Open MPI's folders have process ids in their names, which are few here
        variables = _variables({"TMPDIR": temporary} | condition.variables, folder)
        process = subprocess.Popen(
            words, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            returncode = process.wait(TIME_LIMIT)
        except subprocess.TimeoutExpired:
            returncode = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            for group in Path("/sys/fs/cgroup").glob("*/lightning-sagemaker-*"):
                with contextlib.suppress(OSError):  # another run's
                    group.rmdir()
    return Ended(returncode, (place / "output").read_text(errors="replace"), _result(folder))


def _variables(others: dict[str, str | None], folder: Path) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if not is_contract_variable(name)}
    variables |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    variables |= {"FOLDER": str(folder), "SOURCE": str(folder / "source")}
    for name, value in others.items():
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
    return variables


def _result(folder: Path) -> dict | None:
    for path in (folder / "result" / "result.json", folder / "result.json"):
        if path.exists():
            return json.loads(path.read_text())
    return None
