# SPDX-License-Identifier: Apache-2.0
"""Interrupts runs of every kind and compares each with stock Lightning left alone: ``python -m tests.chaos.run_array``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.chaos.array_case import Result, end_with_parent, run_case, run_stock
from tests.chaos.covering import INTERRUPTED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=300, help="at least")
    parser.add_argument("--first", type=int, default=0, help="number of the first that is run")
    parser.add_argument("--last", type=int, help="number of the last")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of those that are run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--real", type=int, default=20, help="each so many-th is started by real commands; 0: none")
    parser.add_argument("--folder", type=Path, help="keeps references, and the runs that fail")
    parser.add_argument("--json", type=Path, help="file of the results")
    parser.add_argument("--differences", type=int, default=3, help="of a case, that are printed")
    parser.add_argument("--stock", action="store_true", help="compare stock Lightning with itself")
    args = parser.parse_args()
    everything = INTERRUPTED.cases(args.seed, args.cases)
    numbers = args.only if args.only is not None else range(len(everything))[args.first : _after(args.last)]
    chosen = [(number, everything[number], bool(args.real) and number % args.real == 0) for number in numbers]
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        results = []
        try:
            with ProcessPoolExecutor(args.jobs, initializer=end_with_parent) as pool:
                waiting = [
                    pool.submit(run_stock if args.stock else run_case, number, case, folder, real)
                    for number, case, real in chosen
                ]
                for done in as_completed(waiting):
                    results.append(result := done.result())
                    print(result.line(), flush=True)
                    for problem in result.problems[: args.differences]:
                        print(f"       {problem}", flush=True)
        except KeyboardInterrupt:
            shutil.rmtree(temporary)
            os._exit(130)  # and what it has started ends with it
    print(summary(results))
    if args.json:
        args.json.write_text(json.dumps([dataclasses.asdict(result) for result in results], indent=1))
    return int(any(result.problems for result in results))


def _after(last: int | None) -> int | None:
    return None if last is None else last + 1


def summary(results: list[Result]) -> str:
    covered, possible = INTERRUPTED.coverage([result.case for result in results])
    failed = [result for result in results if result.problems]
    words = [f"{len(results)} cases, {len(failed)} fail; {covered} of {possible} pairs of levels"]
    kinds: dict[str, set[int]] = defaultdict(set)
    for result in failed:
        for problem in result.problems:
            kinds[kind(problem)].add(result.number)
    words += [f"{name}: {len(numbers)} cases, as {sorted(numbers)[:8]}" for name, numbers in sorted(kinds.items())]
    times: dict[str, list[float]] = defaultdict(list)
    for result in results:
        for start in result.starts:
            if start.to_exit is not None:
                times[start.phase].append(start.to_exit)
    words.append("seconds from the signal to the exit, median and most:")
    words += [f"  {phase}: {sorted(some)[len(some) // 2]:.2f} {max(some):.2f}" for phase, some in sorted(times.items())]
    return "\n".join(words)


def kind(problem: str) -> str:
    """What a difference is of."""
    if "hangs" in problem:
        return "hang"
    if "left" in problem and "behind" in problem:
        return "processes left behind"
    if "not done after" in problem or "last start ended" in problem:
        return "does not go on"
    if "never came" in problem or "stock Lightning" in problem:
        return "the case itself"
    if "samples" in problem or "never seen" in problem or ": ids is" in problem:
        return "samples lost or doubled"
    if "missing" in problem or "again" in problem or "not in the reference" in problem:
        return "work left out or done twice"
    named = re.findall(r": (\w+) is .* instead of", problem) or re.findall(
        r": (metrics|callbacks|schedules): ", problem
    )
    return f"differs: {named[0] if named else 'other'}"


if __name__ == "__main__":
    sys.exit(main())
