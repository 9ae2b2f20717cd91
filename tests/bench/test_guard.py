# SPDX-License-Identifier: Apache-2.0
"""``make bench-guard`` fails when a ratio is worse, names it, and passes otherwise."""

import dataclasses
import importlib.util
import itertools
import json
import sys
from pathlib import Path

import pytest

_PATH = Path(__file__).parents[2] / "benchmarks" / "guard.py"
spec = importlib.util.spec_from_file_location("guard", _PATH)
guard = importlib.util.module_from_spec(spec)
sys.modules["guard"] = guard
spec.loader.exec_module(guard)


def run(capsys, measure) -> tuple[int, str]:
    code = guard.main([], measure)
    return code, capsys.readouterr().out


def committed(ratio) -> float:
    reference = json.loads(guard.REFERENCE.read_text())
    return reference[next(name for name, one in guard.RATIOS.items() if one is ratio)]


def test_what_was_committed_passes(capsys):
    assert run(capsys, committed)[0] == 0


@pytest.mark.parametrize("name", guard.RATIOS)
def test_a_slowdown_fails_and_is_named(name, capsys):
    slow = guard.RATIOS[name]

    def measure(ratio, change=1.3):
        value = committed(ratio)
        if ratio is not slow:
            return value
        return value * change if ratio.is_better == "lower" else value / change

    code, said = run(capsys, measure)
    assert code == 1
    assert [line.split(":")[0] for line in said.splitlines() if "REGRESSION" in line] == [f"REGRESSION {name}"]
    assert run(capsys, lambda ratio: measure(ratio, 0.7))[0] == 0  # faster is no regression
    assert run(capsys, lambda ratio: measure(ratio, 1.02))[0] == 0  # within the tolerance


@pytest.mark.parametrize(("disturbed", "code"), [(1, 0), (2, 0), (3, 1)])
def test_a_ratio_is_worse_only_if_it_is_each_time(disturbed, code, capsys):
    measured = []

    def measure(ratio):
        if ratio is not guard.RATIOS["pipeline"]:
            return committed(ratio)
        measured.append(ratio)
        return committed(ratio) * (0.8 if len(measured) <= disturbed else 1.0)

    assert run(capsys, measure)[0] == code
    assert len(measured) == min(disturbed + 1, 3)


def test_a_benchmark_that_fails_is_an_error():
    broken = guard.Ratio("nothing", ("-c", "print('no figure')"), r"ratio ([0-9.]+)", "lower", 0.1)
    with pytest.raises(SystemExit, match="no figure"):
        guard.measured_ratio(broken)


def test_the_programs_print_what_the_guard_reads():
    for name, line in (
        ("smddp", "smddp / ddp: 1.0121 (per round: 1.0)"),
        ("pipeline", "  share of the ideal throughput: 0.912"),
        ("recovery", "in_job / ddp: median 1.028, 1.0 to 1.1"),
    ):
        ratio = guard.RATIOS[name]
        printed = ("-c", f"print({line!r})")
        assert guard.measured_ratio(guard.Ratio("", printed, ratio.pattern, "lower", 0.1)) > 0.9


@pytest.mark.parametrize("name", guard.RATIOS)
def test_each_program_still_runs(name):
    given = guard.RATIOS[name]
    words = itertools.pairwise(("", *given.command))
    command = tuple("1" if before == "--rounds" else word for before, word in words)
    assert guard.measured_ratio(dataclasses.replace(given, command=command)) > 0
