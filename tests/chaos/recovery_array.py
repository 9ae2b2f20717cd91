# SPDX-License-Identifier: Apache-2.0
"""Jobs of every kind under ``supervise``, each with a rank that dies, compared with the same job left alone.

``python -m tests.chaos.recovery_array --kind KIND``. In jobs that cannot recover in themselves all ranks are restarted;
what comes of them is to be the same. Two ranks: weights, buffers and optimizers to the last bit. More: losses and metrics
within rounding.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tests.chaos.array_case import ROOT, _end_sessions, end_with_parent
from tests.chaos.compare import lines_of, place
from tests.chaos.covering import FACTORS, FORBIDDEN, Case, Space, finished
from tests.chaos.fabric_array import FABRIC
from tests.chaos.recorder import STATES

_PROGRAM, _FABRIC = (Path(__file__).with_name(name) for name in ("recovery_program.py", "fabric_recovery_program.py"))
_LIMIT = 120.0
"""Seconds of a job; what takes longer hangs."""
_AS_INTERRUPTED = (
    *("data", "val", "schedule", "checkpoint", "extra", "accumulate", "optimization", "limit_train", "limit_val"),
    *("sanity", "metrics", "model", "persistent", "again"),
)
LEVELS: dict[str, tuple[Any, ...]] = {
    **{name: FACTORS[name] for name in _AS_INTERRUPTED},
    "phase": tuple(phase for phase in FACTORS["phase"] if phase not in ("test", "predict")),
    "end": ("steps", "epochs", "early_stopping"),
    "to": ("rank0", "last_rank"),
    "ranks": (2, 3),
    "workers": (0, 1),
    "evaluates": ("alone", "workers", "persistent"),
    "resumes": (True, False),
    "optimizer": ("adam", "lbfgs", "twice"),
    "clip": ("", "norm", "value"),
    "loaders": ("one", "two"),
    "reload": (0, 1),
    "precision": ("32-true", "bf16-mixed"),
}
FIXED = {"signal": "SIGKILL", "second": "SIGKILL", "strategy": "sagemaker", "launcher": "supervise", "resize": "same"}
FIXED |= {"context": "fork", "overhead": 1.0, "save": "none"}
_IN_JOB: dict[str, tuple[Any, ...]] = {
    "data": ("shuffled", "random_sampler", "uneven", "augmented", "collate"),
    "extra": ("none", "early_stopping", "loads_averages", "exchanges_values", "exchanges_pointers"),
    "optimization": ("automatic",),
}
_REPLICAS: dict[str, tuple[Any, ...]] = _IN_JOB | {"ranks": (4,), "optimizer": ("adam",), "clip": ("", "norm")}
_IMPOSSIBLE: tuple[dict[str, tuple[Any, ...]], ...] = (
    {"val": ("none",), "evaluates": ("workers", "persistent")},
    {"val": ("none",), "loaders": ("two",)},
    # What Lightning refuses, and what torch does.
    {"optimization": ("manual", "manual_two"), "clip": ("norm", "value")},
    {"optimizer": ("lbfgs",), "precision": ("bf16-mixed",)},
    {"strategy": ("replicas",), "model": ("batchnorm",), "precision": ("bf16-mixed",)},
    # Gradients that are computed several times are of one batch.
    {"optimizer": ("lbfgs", "twice"), "accumulate": (3, "scheduler")},
    {"optimizer": ("lbfgs", "twice"), "optimization": ("manual", "manual_two")},
    # In the job a lost rank's part of a training epoch's metrics is lost, so what follows one differs.
    {"val": ("none",), "schedule": ("plateau",)},
    {"val": ("none",), "end": ("early_stopping",)},
    {"val": ("none",), "extra": ("early_stopping",)},
    {"val": ("none",), "checkpoint": ("top_k",)},
    # Without our callbacks nothing asks for a checkpoint.
    {"checkpoint": ("none",), "phase": ("checkpoint",)},
)


@dataclasses.dataclass
class Result:
    """What came of a case."""

    number: int
    case: Case
    problems: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    mode: str = ""
    kills: int = 0

    def line(self) -> str:
        plain = {name: levels[0] for name, levels in _levels(self.case).items()}
        words = " ".join(f"{name}={self.case[name]}" for name in plain if self.case[name] != plain[name])
        state = "FAIL" if self.problems else "ok"
        return f"{self.number:4} {state:4} {self.seconds:5.1f} s  {self.mode:8} {self.kills} killed  {words}"


def _space(levels: dict[str, tuple[Any, ...]], **fixed: str) -> Space:
    both = {**levels, **{name: (level,) for name, level in (FIXED | fixed).items()}}
    return Space(both, (*FORBIDDEN, *_IMPOSSIBLE), finished)


SPACES = {
    "in job": _space(LEVELS | _IN_JOB),
    "all": _space(LEVELS),
    "replicas": _space(LEVELS | _REPLICAS, strategy="replicas"),
    "fabric": FABRIC,
}
"""Jobs that recover in themselves; also those whose ranks are all restarted; those of two sharded replicas; own loops."""


def _is_loop(case: Case) -> bool:
    return "strategy" not in case


def _levels(case: Case) -> dict[str, tuple[Any, ...]]:
    return FABRIC.factors if _is_loop(case) else LEVELS


def run_case(number: int, case: Case, folder: Path) -> Result:
    """Run it in ``folder``, where references are kept for other cases."""
    result, begin = Result(number, case), time.monotonic()
    reference = _reference(case, folder / "references")
    if not (reference / "done").exists():
        result.problems = [f"left alone it fails: {_last_error(reference)}"]
        return result
    own = folder / f"case-{number}"
    shutil.rmtree(own, ignore_errors=True)
    code, left = _run(case, own)
    log = (own / "log").read_text(errors="replace")
    result.mode = "restarts" if "are restarted" in log else "in job"
    ranks = range(case["ranks"])
    result.kills = sum(line["kind"] == "strike" for rank in ranks for line in lines_of(own, rank))
    result.problems = _problems(case, reference, own, code, left, result.kills)
    result.seconds = time.monotonic() - begin
    if not result.problems:
        shutil.rmtree(own)
    return result


def _problems(case: Case, reference: Path, own: Path, code: int | None, left: int, kills: int) -> list[str]:
    found = [f"left {left} processes behind"] if left else []
    if not kills:
        found.append("the strike never came")
    if code is None:
        return [*found, "hangs"]
    if code or not (own / "done").exists():
        return [*found, f"ended with {code}: {_last_error(own)}"]
    return found + _differences(case, reference, own)


def _reference(case: Case, folder: Path) -> Path:
    plain = {name: level for name, level in case.items() if name not in ("phase", "to", "at", "again")} | {
        "phase": "none"
    }
    name = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / name / "done").exists():
            _run(plain | {"to": "nobody", "at": 0, "again": False}, folder / name)
    return folder / name


def _run(case: Case, own: Path) -> tuple[int | None, int]:
    """Its exit code, and how many processes were left."""
    own.mkdir(parents=True, exist_ok=True)
    (own / "case.json").write_text(json.dumps(case))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SM_", "PL_"))}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "supervise", "--processes", str(case["ranks"])]
    command += [
        "--events",
        str(own / "events.jsonl"),
        str(_FABRIC if _is_loop(case) else _PROGRAM),
        str(own),
        str(own / "case.json"),
    ]
    with (own / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            code: int | None = process.wait(_LIMIT)
        except subprocess.TimeoutExpired:
            code = None
            process.kill()
    return code, _end_sessions(own / "sessions", wait=code is not None)


def _differences(case: Case, reference: Path, own: Path) -> list[str]:
    expected, made = _by_place(case, reference), _by_place(case, own)
    found = [f"{key} is missing" for key in expected if key not in made]
    found += [f"{key} is not in the reference" for key in made if key not in expected]
    for key in expected.keys() & made.keys():
        if key[0] == "validation":
            right, evaluated = _samples(expected[key]), _samples(made[key])
            if evaluated != right:
                found.append(f"{key}: {len(evaluated)} samples instead of {len(right)}")
        for line in made[key]:
            alike = [one for one in expected[key] if key[0] != "batch" or one["ids"] == line["ids"]]
            if not alike:
                found.append(f"{key}: samples {line['ids']}")
                continue
            differences = [_fields(case, one, line) for one in alike]
            found += [f"{key}: {one}" for one in min(differences, key=len)]
    return sorted(found)


def _samples(lines: list[dict[str, Any]]) -> set[int]:
    return {one for line in lines for ids in line["ids"] for one in ids}


def _by_place(case: Case, folder: Path) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    found = defaultdict(list)
    for rank in range(case["ranks"]):
        for line in lines_of(folder, rank):
            if line["kind"] in ("batch", "validation", "epoch", "end"):
                found[place(line)].append(line)
    return found


def _fields(case: Case, expected: dict[str, Any], line: dict[str, Any]) -> list[str]:
    names = ["step", "before", "loss", "rates", "metrics", "callbacks", "schedules", "stopped", "values", "best"]
    names += STATES if case["ranks"] == 2 else ()  # else the sum over the ranks has another order
    if line["kind"] == "epoch":  # of the lost rank's batches there is no sum
        expected, line = (one | {"metrics": _evaluated(one["metrics"])} for one in (expected, line))
    both = [(name, expected[name], line[name]) for name in names if name in expected and name in line]
    return [f"{name} is {other} instead of {one}" for name, one, other in both if not _equal(one, other)]


def _evaluated(metrics: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in metrics.items() if name.startswith("val")}


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, str) and isinstance(other, str) and re.match(r"-?(0x|inf|nan)", one):
        first, second = float.fromhex(one), float.fromhex(other)
        return math.isclose(first, second, rel_tol=1e-4, abs_tol=1e-5) or first == second
    return bool(one == other)


def _last_error(own: Path) -> str:
    log = (own / "log").read_text(errors="replace")
    errors = re.findall(r"^(?:\[rank\d+\]: ?)?((?:\w+\.)*\w*(?:Error|Exception)\b.*)", log, re.MULTILINE)
    return errors[-1][:300] if errors else log[-300:]


def main() -> int:
    """Run them; 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of those that are run")
    parser.add_argument("--kind", choices=SPACES, default="in job", help="of jobs (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="keeps references, and the jobs that fail")
    options = parser.parse_args()
    everything = SPACES[options.kind].cases(0, 1)
    print(f"{len(everything)} cases", flush=True)
    numbers = options.only if options.only is not None else range(len(everything))
    with (
        tempfile.TemporaryDirectory() as temporary,
        ProcessPoolExecutor(options.jobs, initializer=end_with_parent) as pool,
    ):
        folder = options.folder or Path(temporary)
        waiting = [pool.submit(run_case, number, everything[number], folder) for number in numbers]
        results = []
        for done in as_completed(waiting):
            results.append(result := done.result())
            print(result.line(), flush=True)
            for problem in result.problems[:4]:
                print(f"       {problem[:300]}", flush=True)
    failed = [result.number for result in results if result.problems]
    print(f"{len(results)} cases, {len(failed)} fail: {sorted(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
