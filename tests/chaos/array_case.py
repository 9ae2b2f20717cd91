# SPDX-License-Identifier: Apache-2.0
"""One case of the array: the run that is left alone, the one that is struck and started again, and what they differ in."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests import forked
from tests.chaos.compare import compare, compare_samples, lines_of, starts
from tests.chaos.covering import Case, promise, resized, words

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("program.py")
LIMIT = 60.0
"""Seconds of a start; what takes longer hangs."""
STARTS = 4
_LEAVE = 8.0
"""Seconds in which the workers of a loader see that their process has gone."""
_AS_IF_STOCK = ("signal", "to", "at", "again", "overhead", "save", "resize", "launcher", "ours")
"""Factors of which a run that is left alone knows nothing."""
_REAL: set[int] = set()
"""Groups of processes that are not forked."""


@dataclasses.dataclass
class Start:
    """What came of one start."""

    code: int | None
    seconds: float
    to_exit: float | None = None
    """Seconds from the signal."""
    phase: str = ""
    left: int = 0
    """Processes that were still there."""


@dataclasses.dataclass
class Result:
    """What came of a case."""

    number: int
    case: Case
    starts: list[Start] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    again: int = 0
    """Batches of rank 0 that were done more than once."""
    seconds: float = 0.0
    real: bool = False

    def line(self) -> str:
        state = "FAIL" if self.problems else "ok"
        codes = ",".join("hang" if start.code is None else str(start.code) for start in self.starts)
        return f"{self.number:4} {state:4} {self.seconds:5.1f} s  {words(self.case)}  [{codes}{' real' * self.real}]"


def end_with_parent() -> None:
    """For the processes that run cases: nothing that they have started outlives the one that started them."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)


def _end(*_: Any) -> None:
    if forked._server.cache_info().currsize:
        forked._server().terminate()  # it kills the run
    for group in _REAL:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    os._exit(143)


def run_case(number: int, case: Case, folder: Path, real: bool = False) -> Result:
    """Run it in ``folder``, where references are kept for other cases."""
    result, begin = Result(number, case, real=real), time.monotonic()
    try:
        reference = _reference(case, folder / "references")
    except RuntimeError as error:
        result.problems.append(str(error))
        return result
    place = folder / f"case-{number}"
    _run_until_done(result, place)
    if case["end"] == "time" and not any(start.phase for start in result.starts):  # a busy machine
        result.starts, result.case = [], case | {"seconds": 3 * case["seconds"]}
        _run_until_done(result, place)
    result.problems = [*_of_starts(result, place), *_differences(case, reference, place)]
    result.again = _done_again(place)
    result.seconds = time.monotonic() - begin
    if not result.problems:
        shutil.rmtree(place)
    return result


def _run_until_done(result: Result, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    while len(result.starts) < STARTS and not _is_done(result.starts, place):
        (place / "done").unlink(missing_ok=True)
        case = resized(result.case) if result.starts else result.case
        result.starts.append(_start(case, place, len(result.starts), result.real))


def is_hard(case: Case) -> bool:
    """Whether nobody is left to end the others: a container's processes are killed with its first."""
    ends_launcher = (
        case["signal"] == "SIGUSR1" and case["to"] in ("launcher", "group") and case["launcher"] == "torchrun"
    )
    return case["signal"] == "SIGKILL" or ends_launcher


def _is_done(made: list[Start], place: Path) -> bool:
    return (place / "done").exists() and made[-1].code == 0


def run_stock(number: int, case: Case, folder: Path, real: bool = False) -> Result:
    """Stock Lightning twice: what differs then is no reference."""
    stock, begin = reference_case(case), time.monotonic()
    result, place = (
        Result(number, stock | {name: case[name] for name in _AS_IF_STOCK if name not in stock}),
        folder / "again",
    )
    again = place / str(number)
    again.mkdir(parents=True)
    try:
        reference = _reference(case, folder / "references")
        make_reference(stock, again)
        result.problems = compare(reference, again, case["ranks"], whole=case["end"] != "time")
    except RuntimeError as error:
        result.problems.append(str(error))
    result.seconds = time.monotonic() - begin
    return result


def _of_starts(result: Result, place: Path) -> list[str]:
    found = [f"start {number} hangs" for number, start in enumerate(result.starts) if start.code is None]
    if not any(start.phase for start in result.starts):
        found.append("the strike never came")
    if not (place / "done").exists():
        found.append(f"not done after {len(result.starts)} starts: {_last_error(place)}")
    elif result.starts[-1].code != 0:
        found.append(f"the last start ended with {result.starts[-1].code}: {_last_error(place)}")
    for number, start in enumerate(result.starts):
        if start.left and not (start.phase and is_hard(result.case)):
            found.append(f"start {number} left {start.left} processes behind")
    return found


def _differences(case: Case, reference: Path, place: Path) -> list[str]:
    if not (place / "done").exists():
        return []
    match promise(case):
        case "ends":
            return []
        case "samples":
            ranks, in_step = case["ranks"], case["accumulate"] if isinstance(case["accumulate"], int) else 3
            dropped = case["batch_size"] * ranks * in_step if case["data"] == "resumable" else 0
            padding = 4 * ranks if case["data"] == "uneven" else 0
            return compare_samples(reference, place, padding, dropped, same_end=case["end"] != "early_stopping")
        case kind:
            return compare(reference, place, case["ranks"], whole=kind == "equal")


def _done_again(place: Path) -> int:
    batches = [
        (line["epoch"], line["batch"])
        for lines in starts(lines_of(place, 0))
        for line in lines
        if line["kind"] == "batch"
    ]
    return len(batches) - len(set(batches))


def _last_error(place: Path) -> str:
    log = (place / "log").read_text(errors="replace")
    errors = re.findall(r"^(?:\[rank\d+\]: ?)?((?:\w+\.)*\w*(?:Error|Exception)\b.*)", log, re.MULTILINE)
    own = [error for error in errors if not error.startswith("torch.distributed.elastic")]
    return own[-1][:300] if own else log[-200:]


def reference_case(case: Case) -> Case:
    """Stock Lightning, by the launcher that starts soonest."""
    strategy = "auto" if case["strategy"] == "auto" else "ddp"
    tested = case["phase"] if case["phase"] in ("test", "predict") else "none"
    plain = {name: level for name, level in case.items() if name not in _AS_IF_STOCK}
    launcher = "torchrun" if case["ranks"] > 1 else "direct"
    return plain | {"strategy": strategy, "phase": tested, "ours": False, "launcher": launcher}


def _reference(case: Case, folder: Path) -> Path:
    """The folder of the run that is left alone, which is made once for all cases that share it."""
    stock = reference_case(case)
    name = hashlib.sha256(json.dumps(stock, sort_keys=True).encode()).hexdigest()[:16]
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "done").exists():
            make_reference(stock, place)
    return place


def make_reference(stock: Case, place: Path) -> None:
    start = _start(stock, place, 0, real=False)
    if start.code != 0 or not (place / "done").exists():
        raise RuntimeError(f"stock Lightning fails ({start.code}, {start.seconds:.0f} s): {_last_error(place)}")


def _start(case: Case, place: Path, number: int, real: bool) -> Start:
    path = place / f"case-{number}.json"
    path.write_text(json.dumps(case, indent=1))
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("SM_", "PL_", "TORCHELASTIC_"))
    }
    environment |= {"START": str(number), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    script = [str(PROGRAM), str(place), str(path)]
    processes = case["ranks"] if case["launcher"] == "torchrun" else 0
    begin = time.monotonic()
    if real:
        code = _run_real(script, processes, environment, place / "log")
    else:
        code = forked.run_forked(script, processes, environment | {"FORK_RANKS": "1"}, place / "log", LIMIT)
    end = time.monotonic()
    start = Start(code, end - begin)
    strikes = [
        line
        for path in place.glob("rank-*.jsonl")
        for line in lines_of(place, int(path.stem[5:]))
        if line["kind"] == "strike" and line["time"] > begin
    ]
    if strikes:
        first = min(strikes, key=lambda line: line["time"])
        start.to_exit, start.phase = end - first["time"], first["phase"]
    start.left = _end_sessions(place / "sessions", wait=code is not None and not (strikes and is_hard(case)))
    return start


def _run_real(script: list[str], processes: int, environment: dict[str, str], log: Path) -> int | None:
    """By the commands that people use."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes else []
    with log.open("a") as output:
        process = subprocess.Popen(
            [sys.executable, *launcher, *script],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _REAL.add(process.pid)
        try:
            return process.wait(2 * LIMIT)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _REAL.remove(process.pid)


def _end_sessions(path: Path, wait: bool) -> int:
    """Kill what is left of the sessions that processes have noted; how many there were."""
    sessions = {int(number) for number in path.read_text().split()} if path.exists() else set()
    deadline = time.monotonic() + _LEAVE * wait
    while (left := _members(sessions)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    path.unlink(missing_ok=True)
    return len(left)


def _members(sessions: set[int]) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z" and int(fields[3]) in sessions:
                    found.append(int(entry))
    return found
