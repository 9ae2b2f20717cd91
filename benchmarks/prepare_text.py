# SPDX-License-Identifier: Apache-2.0
"""``lightning-sagemaker prepare albert-mlm`` against the tokenizer's own batch encoding on the same cores.

    python benchmarks/prepare_text.py --megabytes 40

The text is Python's own documentation, repeated in other orders. Printed are the throughput of ``encode_batch`` with as
many threads as cores, that of the whole preparation (reading, tokenizing, packing, writing, checksums), their ratio, and the
largest resident memory of the command and of its processes together.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from tokenizers import Tokenizer

from lightning_sagemaker.recipes.albert_mlm.builtin_text import builtin_documents


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sentence-order", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        documents = list(builtin_documents())
        text = folder / "text.txt"
        chance = random.Random(0)
        with text.open("w") as file:
            while file.tell() < args.megabytes * 1e6:
                chance.shuffle(documents)
                file.writelines(f"{document}\n" for document in documents)
        base = [sys.executable, "-m", "lightning_sagemaker.cli", "prepare", "albert-mlm"]
        more = ["--sentence-order"] if args.sentence_order else []
        run([*base, "builtin", str(folder / "tokenizer"), *more])
        tokenizer = folder / "tokenizer" / "tokenizer"
        megabytes = text.stat().st_size / 1e6
        for number in range(args.rounds):
            encoded = encode(text, tokenizer / "tokenizer.json")
            command = [*base, str(text), str(folder / f"shards-{number}"), "--tokenizer", str(tokenizer), *more]
            seconds, memory = run(command)
            start, _ = run([*base, "--help"])
            print(
                f"encode_batch {megabytes / encoded:.2f} MB/s, prepare {megabytes / seconds:.2f} MB/s"
                f" ({megabytes / (seconds - start):.2f} without starting Python),"
                f" ratio {encoded / seconds:.2f}; peak memory {memory:.0f} MB"
            )


def encode(text: Path, file: Path) -> float:
    """Seconds of the tokenizer's own batch encoding."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    lines = text.read_text().splitlines()
    begin = time.perf_counter()
    for start in range(0, len(lines), 1000):
        tokenizer.encode_batch(lines[start : start + 1000], add_special_tokens=False)
    return time.perf_counter() - begin


def run(command: list[str]) -> tuple[float, float]:
    """Seconds, and the peak of the proportional memory of a command and its processes in MB."""
    peak = 0.0
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.2):
            total = 0
            for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
                try:
                    total += one.memory_full_info().pss
                except psutil.Error:
                    continue
            peak = max(peak, total / 1e6)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    code = process.wait()
    seconds = time.perf_counter() - begin
    done.set()
    watcher.join()
    if code:
        sys.exit(f"{command} failed")
    return seconds, peak


if __name__ == "__main__":
    main()
