# SPDX-License-Identifier: Apache-2.0
"""Adapters against all weights on another task: size of a checkpoint, accuracy and time at equal steps.

``python benchmarks/lora.py train.csv`` (columns ``text`` and ``category``, as BANKING77 has them). Half of the classes train
a small model from scratch; what it learned is then fitted to the other half in each way, from the same weights and for as
many steps. A tenth of each half is held out.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import tempfile
import time
from pathlib import Path

WAYS = {
    "all weights": ["--model.learning_rate", "5e-4"],
    "LoRA, rank 8": ["--model.lora.rank", "8", "--model.learning_rate", "3e-3"],
    "LoRA, rank 32": ["--model.lora.rank", "32", "--model.learning_rate", "3e-3"],
    "head only": ["--model.freeze", "bert", "--model.learning_rate", "3e-3"],
}
"""The learning rates are usual for each kind: adapters and heads bear more."""


def split(path: Path, folder: Path) -> None:
    """Write ``first`` and ``second`` halves of the classes, each as ``-train.csv`` and ``-test.csv``."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    draw = random.Random(0)
    draw.shuffle(rows)
    classes = sorted({row["category"] for row in rows})
    draw.shuffle(classes)
    first = set(classes[: len(classes) // 2])
    for name, wanted in (("first", True), ("second", False)):
        part = [row for row in rows if (row["category"] in first) is wanted]
        for kind, chosen in (("test", part[: len(part) // 10]), ("train", part[len(part) // 10 :])):
            with (folder / f"{name}-{kind}.csv").open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, ["text", "category"], extrasaction="ignore")
                writer.writeheader()
                writer.writerows(chosen)


def fit(folder: Path, name: str, half: str, size: str, steps: int, more: list[str]) -> dict[str, float]:
    """One run of the recipe; its figures."""
    run = folder / name.replace(" ", "-").replace(",", "")
    command = [
        "lightning-sagemaker",
        "run",
        "sequence-classification",
        "fit",
        "--config",
        "banking.yaml",
        "--size",
        size,
    ]
    command += ["--train_file", str(folder / f"{half}-train.csv"), "--test_file", str(folder / f"{half}-test.csv")]
    command += ["--max_steps", str(steps), "--run_dir", str(run), "--model.token_dropout", "0", *more]
    begun = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    facts = json.loads((run / "output" / "metrics.json").read_text())
    bytes_ = max(path.stat().st_size for path in run.rglob("*.ckpt"))
    return {"accuracy": facts["test_accuracy"], "seconds": time.monotonic() - begun, "megabytes": bytes_ / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--size", default="small")
    parser.add_argument("--first-steps", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=600)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        split(given.data, folder)
        found = fit(folder, "first", "first", given.size, given.first_steps, [])
        print(f"first half of the classes, from scratch: accuracy {found['accuracy']:.3f}", flush=True)
        print(f"{'':<16}{'accuracy':>10}{'checkpoint':>14}{'seconds':>10}")
        for name, words in WAYS.items():
            start = ["--pretrained", str(folder / "first" / "model")]
            found = fit(folder, name, "second", given.size, given.steps, [*start, *words])
            row = f"{name:<16}{found['accuracy']:>10.3f}{found['megabytes']:>11.2f} MB{found['seconds']:>10.0f}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
