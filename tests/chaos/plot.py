# SPDX-License-Identifier: Apache-2.0
"""Draws the losses of a job that was interrupted five times over those of one that was left alone.

``python -m tests.chaos.plot docs/images/interruptions.png``
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.chaos.harness import Chaos, lines_of

EVENTS = (
    "SIGTERM to rank 1",
    "SIGKILL of rank 0",
    "SIGTERM to the launcher",
    "bit flipped in the newest checkpoint",
    "SIGUSR1 to rank 1",
)
STEPS = 220
_STEPS_PER_START = 40


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(Path(folder), STEPS, seed=3)
        try:
            chaos.reference()
            for event in EVENTS:
                chaos.interrupt(event, _STEPS_PER_START)
            chaos.finish()
            assert chaos.wrong_steps() == []
            calm, lines = lines_of(chaos.calm), lines_of(chaos.folder)
        finally:
            chaos.close()
    figure, axes = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
    axes.plot(*_points(calm), color="0.75", linewidth=5, label="left alone")
    begin = 0
    for number, outcome in enumerate([*chaos.outcomes, None]):
        end = len(lines) if outcome is None else outcome.lines[1]
        axes.plot(*_points(lines[begin:end]), linewidth=1.2, label=f"start {number + 1}")
        if outcome is not None:
            last = lines[end - 1]["step"]
            axes.axvline(last, color="0.6", linewidth=0.6, linestyle=":")
            axes.text(last, 3.15, f"{outcome.event} ", rotation=90, va="bottom", ha="right", fontsize=7)
        begin = end
    axes.set(xlabel="step", ylabel="loss", title=f"ALBERT with dropout, two processes, {len(EVENTS)} interruptions")
    axes.legend(fontsize=7, ncols=2)
    figure.savefig(sys.argv[1], dpi=110)


def _points(lines: list[dict]) -> tuple[list[int], list[float]]:
    return [line["step"] for line in lines], [float.fromhex(line["loss"]) for line in lines]


if __name__ == "__main__":
    main()
