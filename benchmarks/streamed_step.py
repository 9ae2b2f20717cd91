# SPDX-License-Identifier: Apache-2.0
"""ALBERT's training step on text that is streamed from S3, against shards in page cache and against batches in memory.

    python benchmarks/streamed_step.py
    python benchmarks/streamed_step.py --size tiny --steps 2000

The recipe is trained from a server with the API of S3 (moto on loopback, 20 ms a request) with an empty store, on
the same shards on disk (page cache), and on batches that were drawn into a list before the first step. The sides take
turns, each in a process of its own; the first steps, in which everything starts, are not timed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

ADDRESS = "s3://corpus/text/128"
SHARDS = "shards"
"""The same text on disk, below the folder of the run."""
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}


def write_text(path: Path, megabytes: int) -> None:
    """One article per line, of words that are drawn by rank as in natural text."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(5000)]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    with path.open("w") as file:
        while file.tell() < megabytes << 20:
            file.write(". ".join(" ".join(draw.choices(words, weights, k=18)) for _ in range(40)) + ".\n")


@contextlib.contextmanager
def serve(folder: Path, megabytes: int) -> Iterator[str]:
    """The prepared text on a server; yields its address."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import boto3

    from lightning_sagemaker.recipes.albert_mlm.prepare_text import main
    from tests.chaos.s3_server import Servers

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    servers = Servers()
    os.environ.update(KEYS, AWS_ENDPOINT_URL=servers.direct, XDG_CACHE_HOME=str(folder / "home"))
    boto3.client("s3").create_bucket(Bucket="corpus")
    write_text(folder / "text.txt", megabytes)
    with contextlib.redirect_stdout(io.StringIO()):
        for place in (ADDRESS, str(folder / SHARDS)):
            if main([str(folder / "text.txt"), place, "--vocab-size", "8000", "--sequence-length", "128"]):
                sys.exit("the text could not be prepared")
    servers.latency = 0.02
    try:
        yield servers.endpoint
    finally:
        servers.close()


def train(args: argparse.Namespace) -> None:
    """One side, in this process: prints the median and mean milliseconds of a step."""
    from lightning.pytorch import Callback
    from torch.utils.data import DataLoader, IterableDataset

    from lightning_sagemaker.recipes._common.cli.recipe_cli import RecipeCLI
    from lightning_sagemaker.recipes.albert_mlm.data import MLMDataModule
    from lightning_sagemaker.recipes.albert_mlm.recipe import RECIPE

    total = args.skip + args.steps
    times: list[float] = []
    fetched: list[str] = []
    """Where the batches came from that were fetched since the last step."""
    sources: list[list[str]] = []

    class Ticks(Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            times.append(time.perf_counter())
            sources.append([*fetched])
            fetched.clear()

    class InTurn(IterableDataset[Any]):
        """A streamed batch, two from memory, two streamed, and so on: neither is always the even step."""

        def __init__(self, streamed: Any, memory: list[Any]) -> None:
            self.streamed, self.memory = streamed, memory

        def __iter__(self) -> Iterator[Any]:
            batches = {"streamed": iter(self.streamed), "memory": iter(self.memory)}
            for number in range(total):
                source = "streamed" if number % 4 in (0, 3) else "memory"
                batch = next(batches[source])
                fetched.append(source)
                yield batch

    class TimedCLI(RecipeCLI):
        def _callbacks(self, folders: Any, config: Any) -> list[Callback]:
            return [*super()._callbacks(folders, config), Ticks()]

    draw = MLMDataModule.train_dataloader

    def drawn_before(self: MLMDataModule) -> Any:
        return DataLoader(list(islice(draw(self), total)), batch_size=None)

    def in_turn(self: MLMDataModule) -> Any:
        memory = list(islice(draw(self), total // 2 + 1))
        return DataLoader(InTurn(draw(self), memory), batch_size=None)

    if args.side == "paired":
        MLMDataModule.train_dataloader = in_turn
    if args.side == "memory":
        MLMDataModule.train_dataloader = drawn_before
    with tempfile.TemporaryDirectory() as folder:
        options = ["--config", f"{args.size}.yaml", "--text", args.text or ADDRESS, "--run_dir", folder]
        options += ["--cache_dir", f"{folder}/store"]
        options += ["--global_batch_size", str(args.batch), "--max_steps", str(total), "--max_seq_length", "128"]
        options += ["--trainer.limit_val_batches", "0", "--trainer.max_epochs", "-1", "--vocab_size", "8000"]
        options += ["--data.sentence_order", "false"]  # the shards are without
        options += ["--data.num_workers", args.workers]
        TimedCLI(RECIPE, options)
    if args.side == "paired":
        print(json.dumps(of_pairs(times, sources, args.skip)))
        return
    steps = [1000 * (after - before) for before, after in zip(times[args.skip :], times[args.skip + 1 :], strict=False)]
    print(json.dumps({"median": statistics.median(steps), "mean": statistics.fmean(steps)}))


def of_pairs(times: list[float], sources: list[list[str]], skip: int) -> dict[str, float]:
    """Milliseconds of a step by the source of the batch that was fetched in it, and the ratio of neighbors."""
    steps: dict[str, list[float]] = {"streamed": [], "memory": []}
    for before, after, source in list(zip(times, times[1:], sources[1:], strict=False))[skip:]:
        if len(source) == 1:
            steps[source[0]].append(1000 * (after - before))
    ratios = [ours / theirs for ours, theirs in zip(steps["streamed"], steps["memory"], strict=False)]
    return {name: statistics.median(found) for name, found in steps.items()} | {"ratio": statistics.median(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="tiny", help="the recipe's configuration: tiny, small, base")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--skip", type=int, default=300, help="steps before those that are timed")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--workers", default="auto", help="loader processes; a number, where --skip does not cover the search"
    )
    parser.add_argument("--megabytes", type=int, default=48, help="of text")
    parser.add_argument(
        "--paired", action="store_true", help="one run in which every other batch is from memory; with --workers 0"
    )
    parser.add_argument("--side", choices=("streamed", "mapped", "memory", "paired"), help=argparse.SUPPRESS)
    parser.add_argument("--text", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        train(args)
        return
    found: dict[str, list[dict[str, float]]] = {"streamed": [], "mapped": [], "memory": []}
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder), args.megabytes) as endpoint:
        os.environ["AWS_ENDPOINT_URL"] = endpoint
        if args.paired:
            for _ in range(args.rounds):
                done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--side", "paired"])
                if done.returncode:
                    sys.exit("the run failed")
            return
        for number in range(args.rounds):
            for side in list(found) if number % 2 == 0 else reversed(list(found)):
                command = [sys.executable, __file__, *sys.argv[1:], "--side", side]
                command += ["--text", str(Path(folder) / SHARDS)] if side == "mapped" else []
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    sys.exit(done.stderr[-3000:])
                found[side].append(json.loads(done.stdout.splitlines()[-1]))
    for peer in ("mapped", "memory"):
        for key in ("median", "mean"):
            ratios = [a[key] / b[key] for a, b in zip(found["streamed"], found[peer], strict=True)]
            ours, theirs = (statistics.median(run[key] for run in found[side]) for side in ("streamed", peer))
            print(
                f"{key} of a step: streamed {ours:.2f} ms, {peer} {theirs:.2f} ms, "
                f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
            )


if __name__ == "__main__":
    main()
