# SPDX-License-Identifier: Apache-2.0
"""Ratios that do not depend on the machine, compared with the committed ones: ``make bench-guard``.

    python benchmarks/guard.py                     # exit code 1 if one is worse than its limit, and it is named
    python benchmarks/guard.py --only pipeline
    python benchmarks/guard.py --write             # commit what is measured now as the reference

Each ratio comes from two things measured in turn in one run of another benchmark. A tolerance covers what runs of the same
code on the same machine differ by. What other programs on the machine take for a while makes a single run worse by more than
that, so a ratio that is worse is measured again: it is a regression if it is worse each of three times.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
REFERENCE = HERE / "guard.json"
_TRIES = 3


@dataclass(frozen=True)
class Ratio:
    """One guarded ratio.

    Attributes:
        what: The ratio in words.
        command: Arguments of Python.
        pattern: Finds the ratio, or above and below the line of it, in what the command prints.
        is_better: ``"higher"`` or ``"lower"``.
        tolerance: Relative change to the worse that is still accepted.

    """

    what: str
    command: tuple[str, ...]
    pattern: str
    is_better: str
    tolerance: float


RATIOS = {
    "smddp": Ratio(
        "step time of smddp over ddp",
        ("step_overhead.py", "--rounds", "3", "--steps", "40"),
        r"smddp / ddp: ([\d.]+)",
        "lower",
        0.05,
    ),
    "pipeline": Ratio(
        "throughput of a pipeline over its ideal",
        ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "pipeline.py", "--rounds", "3"),
        r"share of the ideal throughput: ([\d.]+)",
        "higher",
        0.10,
    ),
    "recovery": Ratio(
        "step time under supervise over ddp",
        ("recovery.py", "--rounds", "2", "--steps", "60"),
        r"in_job / ddp: median ([\d.]+)",
        "lower",
        0.08,
    ),
    "recipe": Ratio(
        "throughput of the ALBERT recipe over transformers.Trainer",
        ("recipes.py", "mlm-small", "--rounds", "1", "--steps", "12"),
        r"samples/s .*?ratio ([\d.]+)",
        "higher",
        0.15,
    ),
    "data": Ratio(
        "tokens per processor second over memory maps in a DataLoader",
        (
            *("data.py", "--ways", "lightning-sagemaker", "DataLoader over memory maps"),
            *("--workers", "0", "--rounds", "3", "--batches", "400"),
        ),
        r"\| lightning-sagemaker \| 0 \| ([\d.e+]+) .*?\| DataLoader over memory maps \| 0 \| ([\d.e+]+) ",
        "higher",
        0.25,
    ),
}


def main(arguments: list[str] | None = None, measure: Callable[[Ratio], float] | None = None) -> int:
    """Measure and compare.

    Args:
        arguments: ``sys.argv[1:]`` by default.
        measure: Returns a ratio's value; runs its command by default.

    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=RATIOS, help="measure these")
    parser.add_argument("--write", action="store_true", help="make what is measured the reference")
    parser.add_argument("--reference", type=Path, default=REFERENCE, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    reference = json.loads(given.reference.read_text()) if given.reference.is_file() else {}
    measured, worse = {}, []
    for name in given.only or RATIOS:
        for _ in range(1 if given.write else _TRIES):
            measured[name] = (measure or measured_ratio)(RATIOS[name])
            print(f"{name}: {RATIOS[name].what}: {measured[name]:.3f}", flush=True)
            found = [] if given.write else regressions({name: measured[name]}, reference)
            if not found:
                break
        worse += found
    if given.write:
        rounded = {name: round(value, 3) for name, value in measured.items()}
        given.reference.write_text(json.dumps(reference | rounded, indent=1) + "\n")
        return 0
    print("\n".join(worse) if worse else "No ratio is worse than its reference.")
    return 1 if worse else 0


def regressions(measured: Mapping[str, float], reference: Mapping[str, float]) -> list[str]:
    """A sentence for each ratio that is worse than the reference by more than its tolerance.

    Args:
        measured: Name -> ratio.
        reference: Name -> committed ratio; one that is missing is an error of the caller.

    """
    found = []
    for name, value in measured.items():
        ratio, before = RATIOS[name], reference[name]
        lost = value / before - 1 if ratio.is_better == "lower" else before / value - 1
        if lost > ratio.tolerance:
            found.append(
                f"REGRESSION {name}: {ratio.what} is {value:.3f}, was {before:.3f}; {ratio.is_better} is better and"
                f" {ratio.tolerance:.0%} is tolerated. HINT: python benchmarks/guard.py --only {name} on a quiet machine."
            )
    return found


def measured_ratio(ratio: Ratio) -> float:
    """Run a ratio's command.

    Args:
        ratio: What to measure.

    Raises:
        SystemExit: If the command fails or prints no ratio.

    """
    arguments = [str(HERE / one) if one.endswith(".py") else one for one in ratio.command]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=600)
    found = re.search(ratio.pattern, done.stdout, re.DOTALL)
    if done.returncode or not found:
        sys.exit(
            f"error: {' '.join(ratio.command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}"
        )
    above, *below = map(float, found.groups())
    return above / below[0] if below else above


if __name__ == "__main__":
    sys.exit(main())
