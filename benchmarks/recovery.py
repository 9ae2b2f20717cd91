# SPDX-License-Identifier: Apache-2.0
"""What recovery in the job costs while nothing fails: step time under ``supervise`` against stock DDP under torchrun.

    python benchmarks/recovery.py --rounds 5

Both train the same module on the same data, in turn; a step sleeps for ``--pause`` seconds, in the place of a GPU's work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

_TRAINING = Path(__file__).parents[1] / "tests" / "chaos" / "recovery_training.py"
_WARM_UP = 10


def step_seconds(launcher: list[str], strategy: str, training: list[str], steps: int) -> float:
    """Median seconds of a step of one run."""
    with tempfile.TemporaryDirectory() as place:
        options = ["--strategy", strategy, "--samples", str(16 * steps), "--epochs", "1", "--no-validation"]
        command = [*launcher, str(_TRAINING), place, *options, *training]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rows = [json.loads(line) for line in (Path(place) / "steps.jsonl").read_text().splitlines()]
    times = [row[2] for row in rows if row[0] == "step"]
    return statistics.median(b - a for a, b in pairwise(times[_WARM_UP:]))


def main() -> None:
    """Measure, and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds of a step that are slept")
    parser.add_argument("--width", type=int, default=512, help="units of the hidden layers: 2 x width^2 parameters")
    parser.add_argument(
        "--depth",
        type=int,
        default=0,
        help="further layers: with 48 there are as many parameter tensors as in a BERT-base",
    )
    options = parser.parse_args()
    training = [f"--{name}={getattr(options, name)}" for name in ("pause", "width", "depth")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    supervise = [sys.executable, "-m", "lightning_sagemaker.cli", "supervise", "--processes", "2"]
    ratios = []
    for _ in range(options.rounds):
        plain = step_seconds(torchrun, "ddp", training, options.steps)
        recovering = step_seconds(supervise, "sagemaker", training, options.steps)
        ratios.append(recovering / plain)
        print(f"ddp {plain * 1e3:.2f} ms, in_job {recovering * 1e3:.2f} ms: {ratios[-1]:.3f}", flush=True)
    print(f"in_job / ddp: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
