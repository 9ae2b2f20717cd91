# SPDX-License-Identifier: Apache-2.0
"""The parts of a step: held to known sleeps, to Lightning's SimpleProfiler, and to the time without the profiler."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_sagemaker.bench import breakdown, traced
from lightning_sagemaker.bench.breakdown import PARTS, Recorded, divide
from lightning_sagemaker.bench.intervals import clip, difference, length, union

SCRIPT = Path(__file__).parent / "traced_script.py"


def run(folder: Path, ranks: int) -> tuple[breakdown.Breakdown, ...]:
    start = (
        [sys.executable] if ranks == 1 else [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    )
    start += [] if ranks == 1 else ["--standalone"]
    script = [str(SCRIPT), "--devices", str(ranks), "--profile", str(folder), "--max_steps", str(traced.STEPS)]
    command = [*start, "-m", traced.MODULE, str(folder), *script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    return breakdown.load(folder)


def simple(folder: Path, action: str) -> float:
    """Lightning's own mean seconds of an action."""
    text = next(folder.glob("*simple*")).read_text()
    return float(re.search(rf"{action}\s*\t\|\s*([\d.e-]+)", text)[1])


@pytest.mark.alone
def test_each_sleep_is_in_its_part(tmp_path):
    (one,) = run(tmp_path, 1)
    slept = {"data": 0.020, "forward": 0.030, "backward": 0.015, "optimizer": 0.010, "communication": 0.0}
    for part, seconds in slept.items():
        assert seconds <= one.seconds[part] + 1e-9
        assert one.seconds[part] < seconds + 0.012, part
    assert sum(one.seconds.values()) == pytest.approx(one.traced_seconds)
    assert one.traced_seconds == pytest.approx(one.untraced_seconds, rel=0.15)
    step = simple(tmp_path, re.escape("[LightningModule]Model.optimizer_step"))
    theirs = {
        "data": simple(tmp_path, "train_dataloader_next"),
        "forward": simple(tmp_path, "training_step"),
        "backward": simple(tmp_path, re.escape("SingleDeviceStrategy.backward")),
    }
    theirs["optimizer"] = step - theirs["forward"] - theirs["backward"]
    for part, seconds in theirs.items():
        assert one.seconds[part] == pytest.approx(seconds, rel=0.15, abs=0.004), part


@pytest.mark.alone
@pytest.mark.slow
def test_waiting_for_a_slower_rank_is_communication(tmp_path):
    fast, slow = run(tmp_path, 2)
    assert (fast.rank, slow.rank) == (0, 1)
    assert 0.015 < fast.seconds["communication"] - slow.seconds["communication"] < 0.040
    assert 0.015 < slow.seconds["forward"] - fast.seconds["forward"] < 0.040
    for one in (fast, slow):  # the sleep in the backward pass is computation, not communication
        assert 0.015 <= one.seconds["backward"] < 0.030


def test_a_script_without_a_trainer_runs_as_ever(tmp_path):
    script = tmp_path / "plain.py"
    script.write_text("import sys\nassert __name__ == '__main__'\nprint(sys.argv[1:], sys.path[0])\n")
    command = [sys.executable, "-m", traced.MODULE, str(tmp_path / "out"), str(script), "--a", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == f"['--a', '1'] {tmp_path}"
    assert breakdown.load(tmp_path / "out") == ()


# the arithmetic


def test_each_moment_counts_once():
    found = divide(
        Recorded(
            steps=[(0, 100), (100, 200)],
            ranges={
                "data": [(0, 20)],
                "optimizer": [(20, 90)],  # the closure runs inside
                "forward": [(25, 50)],
                "backward": [(50, 80)],
            },
            communication=[(60, 78), (150, 160)],
            computation=[(50, 70)],
            excluded=[(180, 200)],
        )
    )
    wanted = {"data": 20, "forward": 25, "backward": 22, "communication": 18, "optimizer": 15, "other": 80}
    assert found == {part: wanted[part] / 2 for part in PARTS}


def test_sets_of_intervals_are_sets_of_moments():
    made_up = random.Random(0)
    for _ in range(300):
        a, b = ([sorted(made_up.sample(range(30), 2)) for _ in range(made_up.randrange(6))] for _ in range(2))

        def moments(intervals):
            return {moment for start, end in intervals for moment in range(start, end)}

        first, second = union(map(tuple, a)), union(map(tuple, b))
        assert moments(first) == moments(a)
        assert length(first) == len(moments(a))
        assert moments(difference(first, second)) == moments(a) - moments(b)
        assert moments(clip(first, (5, 20))) == moments(a) & set(range(5, 20))
