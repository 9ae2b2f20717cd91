# SPDX-License-Identifier: Apache-2.0
"""Draws the losses of a job whose ranks were killed five times, and that never restarted, over those of an undisturbed one.

``python -m tests.chaos.recovery_picture docs/images/recovery.svg``

Both jobs are real ones of three ranks with dropout. The upper part shows the loss of each optimizer step; the lower one
shows when each step was made, so a pause is a flat piece of the line.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.recovery import Setting, run
from tests.chaos.recovery_compare import compare, rows

KILLS = 5
SETTING = Setting(3, samples=3600, dropout=0.2, epochs=5)  # Adam divides rounding by gradients that are nearly zero
_EVERY = 6.0
"""Seconds between two kills."""


@dataclass(frozen=True)
class Curve:
    """What one job did.

    Attributes:
        steps: Numbers of its optimizer steps.
        losses: Mean training loss over the ranks' batches of each of them.
        seconds: When each step was over, since the first one.

    """

    steps: list[int]
    losses: list[float]
    seconds: list[float]
    begin: float


def curve(folder: Path) -> Curve:
    """Read the notes of a job.

    Args:
        folder: Its files, as :mod:`.recovery_training` writes them. A batch that was trained on again after a loss counts
            once: its losses are equal.

    """
    shards: defaultdict[int, dict[tuple[int, ...], float]] = defaultdict(dict)
    for path in sorted(folder.glob("rank-*.jsonl")):
        for row in rows(path):
            shards[row["step"]][tuple(row["samples"])] = row["loss"]
    times = {row[1]: row[2] for row in rows(folder / "steps.jsonl") if row[0] == "step"}
    steps = sorted(times)
    begin = times[steps[0]]
    losses = [sum(found.values()) / len(found) for found in (shards[step - 1] for step in steps)]
    return Curve(steps, losses, [times[step] - begin for step in steps], begin)


def draw(alone: Curve, killed: Curve, kills: list[tuple[str, float]], path: Path) -> None:
    """Write the picture.

    Args:
        alone: The undisturbed job.
        killed: The other one.
        kills: What was done to it, and when, in seconds since 1970.
        path: File to write; its suffix says which kind.

    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "recovery"
    figure, (upper, lower) = pyplot.subplots(2, 1, figsize=(8, 5.4), layout="constrained")
    upper.plot(alone.steps, alone.losses, color="0.75", linewidth=4, label="undisturbed")
    upper.plot(killed.steps, killed.losses, color="C0", linewidth=0.9, label=f"{len(kills)} kills, no restart")
    lower.plot(alone.seconds, alone.steps, color="0.75", linewidth=4)
    lower.plot(killed.seconds, killed.steps, color="C0", linewidth=1.2)
    for kind, at in kills:
        second = at - killed.begin
        last = max((step for step, done in zip(killed.steps, killed.seconds, strict=True) if done < second), default=0)
        upper.axvline(last, color="C3", linewidth=0.8, linestyle=":")
        lower.axvline(second, color="C3", linewidth=0.8, linestyle=":")
        lower.text(second, lower.get_ylim()[1], f"{kind} ", rotation=90, va="top", ha="right", fontsize=7, color="C3")
    upper.set(xlabel="optimizer step", ylabel="training loss", title="Three ranks, dropout, SIGKILL five times")
    lower.set(xlabel="seconds", ylabel="optimizer step")
    upper.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)


def main(path: Path) -> int:
    """Run both jobs, compare them, and draw them; 1 if they differ."""
    with tempfile.TemporaryDirectory() as place:
        reference, folder = Path(place, "alone"), Path(place, "killed")
        outcomes = [
            run(SETTING, reference, None),
            run(SETTING, folder, random.Random(5), KILLS, ["kill", "kill the first"], every=_EVERY),
        ]
        problems = [f"exit code {one.code}" for one in outcomes if one.code]
        problems += outcomes[1].problems or compare(reference, folder, SETTING, KILLS)
        if problems:
            print("\n".join([*problems, outcomes[1].output[-3000:]]))
            return 1
        draw(curve(reference), curve(folder), [(kind, at) for kind, at in outcomes[1].faults], path)
        print(
            f"{len(outcomes[1].faults)} kills, equal; pauses of {', '.join(f'{gap:.2f}' for _, gap in outcomes[1].gaps)} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
