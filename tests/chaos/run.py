# SPDX-License-Identifier: Apache-2.0
"""Interrupts real jobs many times and prints a table: ``python -m tests.chaos.run --cases 200``."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from lightning_sagemaker.simulator.network import obstacle
from tests.chaos.harness import EVENTS, FULL, OF_HOSTS, Chaos, table

_PER_JOB = 20
"""Interruptions of one job."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    outcomes, wrong = [], []
    for number in range(0, args.cases, _PER_JOB):
        with tempfile.TemporaryDirectory() as folder:
            hosts = number // _PER_JOB % 4 == 1 and obstacle() is None
            chaos = Chaos(Path(folder), steps=40 * _PER_JOB, seed=args.seed + number, hosts=hosts)
            try:
                chaos.reference()
                events = [*OF_HOSTS] if hosts else []
                events += [event for event in EVENTS if event != FULL or chaos.has_small_disk]
                order = [events[(number + index) % len(events)] for index in range(min(_PER_JOB, args.cases - number))]
                for event in chaos.random.sample(order, len(order)):
                    outcome = chaos.interrupt(event)
                    where = " (two hosts)" if hosts else ""
                    print(f"{event}{where}: exit {outcome.returncode} after {outcome.seconds_to_end:.1f} s", flush=True)
                chaos.finish()
                outcomes += chaos.outcomes
                wrong += chaos.wrong_steps()
            finally:
                chaos.close()
    print(table(outcomes))
    for one in wrong[:10]:
        print(f"differs: {one}")
    print(f"{len(outcomes)} interruptions, hangs {sum(one.hung for one in outcomes)}, steps that differ {len(wrong)}")


if __name__ == "__main__":
    main()
