# SPDX-License-Identifier: Apache-2.0
"""Tokens a second from page cache, disk and S3, and the time to the first batch, beside other ways of reading them.

``python benchmarks/data.py`` makes shards of random tokens, starts a server with S3's API (moto) behind a proxy that adds
20 ms to each request, and reads the same rows in each way, in turn, several rounds. Ways whose package is not installed are
left out and named; ``--ways`` chooses some. ``--cold`` drops the files on disk from page cache before each reading. Tokens
are counted by seconds of the processor, of the reading process and its workers, which other programs on the machine change
little, and by those of the clock.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from data_files import KINDS, PEERS, VOCABULARY, kind_of, make
from data_others import (
    ADDRESS,
    BUCKET,
    PREFIX,
    connector_s3,
    datasets_mapped,
    datasets_streaming,
    litdata_memory,
    litdata_s3,
    mosaicml_memory,
    mosaicml_s3,
    plain,
    webdataset_s3,
)
from torch.utils.data import Dataset

SECONDS = 30.0
"""A way that is slow reads as much as it can in them."""

Way = Callable[[argparse.Namespace, Path, str], Iterable[Any]]


class Batches(Dataset[Any]):
    """A batch at a time, from this project's shards."""

    depends_on_indices_only = True

    def __init__(self, shards: Any, read: Callable[[Any], Any]) -> None:
        self._shards, self._read = shards, read

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, draws: list[int]) -> torch.Tensor:
        return {"rows": torch.from_numpy(self._read(np.asarray(draws) % len(self)))}


def ours(args: argparse.Namespace, folder: Path, cache: str) -> Iterable[Any]:
    """This project, from page cache."""
    from lightning_sagemaker.data.batches import TrainingBatches
    from lightning_sagemaker.recipes.albert_mlm.shards import Shards

    shards = Shards(folder, {file.name: {} for file in sorted(folder.glob("train-*.npy"))})
    batches = TrainingBatches(len(shards), args.batch)
    return _loader(args, _dataset(args, shards, shards.rows), batches)


def _dataset(args: argparse.Namespace, shards: Any, read: Callable[[Any], Any]) -> Dataset[Any]:
    """Rows as they are, or with ``--masked`` as ``albert-mlm`` masks them: 20 of 128 tokens."""
    if not args.masked:
        return Batches(shards, read)
    from lightning_sagemaker.recipes.albert_mlm.data import MaskedSequences
    from lightning_sagemaker.recipes.albert_mlm.masking import Masking, Vocabulary

    vocabulary = Vocabulary(VOCABULARY, special=(0, 1, 2, 3, 4), mask=4)
    return MaskedSequences(shards, Masking(vocabulary, num_masked=20), seed=0)


def ours_s3(args: argparse.Namespace, folder: Path, cache: str) -> Iterable[Any]:
    """This project, from S3 with an empty cache."""
    from lightning_sagemaker.data.batches import TrainingBatches
    from lightning_sagemaker.data.block_index import INDEX, read_index
    from lightning_sagemaker.data.s3_objects import S3Objects
    from lightning_sagemaker.data.streamed import StreamedRows
    from lightning_sagemaker.recipes.albert_mlm.streamed import StreamedShards

    objects = S3Objects()
    objects.connect()
    rows = StreamedRows(ADDRESS, read_index((folder / INDEX).read_text()), Path(cache), 32 * 10**9, objects)
    shards = StreamedShards(rows, "train")
    batches = TrainingBatches(len(shards), args.batch, blocks=shards.blocks)
    shards.look_ahead(batches)
    read = shards.rows if args.rows == "tokens" else partial(rows.read, "train", 0)
    return _loader(args, _dataset(args, shards, read), batches)


def _loader(args: argparse.Namespace, dataset: Dataset[Any], batches: Any) -> Iterable[Any]:
    """As the recipes make theirs."""
    from lightning_sagemaker.data.handover import hand_over
    from lightning_sagemaker.recipes._common.data.loaders import RecipeLoader

    loader = RecipeLoader(dataset, batch_size=None, sampler=batches, num_workers=args.workers, collate_fn=hand_over)
    loader.batches_per_message = args.per_message
    return loader


WAYS: dict[str, tuple[Way, str]] = {
    "lightning-sagemaker": (ours, "memory"),
    "DataLoader over memory maps": (plain, "memory"),
    "datasets, mapped": (datasets_mapped, "memory"),
    "datasets, streaming": (datasets_streaming, "memory"),
    "litdata": (litdata_memory, "memory"),
    "mosaicml-streaming": (mosaicml_memory, "memory"),
    "lightning-sagemaker, S3": (ours_s3, "S3"),
    "s3torchconnector, S3": (connector_s3, "S3"),
    "litdata, S3": (litdata_s3, "S3"),
    "mosaicml-streaming, S3": (mosaicml_s3, "S3"),
    "webdataset, S3": (webdataset_s3, "S3"),
}


def serve(folder: Path, latency: float) -> None:
    """A server, in a process of its own: prints its address, and has all files of ``folder``."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.chaos.s3_server import Servers

    servers = Servers()
    import boto3
    from botocore.config import Config

    client = boto3.client("s3", endpoint_url=servers.direct, config=Config(s3={"addressing_style": "path"}))
    client.create_bucket(Bucket=BUCKET, ACL="public-read-write")
    for file in (path for path in folder.rglob("*") if path.is_file()):
        name = file.relative_to(folder).as_posix()
        key = name if file.parent.name in ("litdata", "mds", "tar") else f"{PREFIX}/{name}"
        if file.parent.name not in ("arrow", "parquet"):
            client.upload_file(str(file), BUCKET, key, ExtraArgs={"ACL": "public-read"})
    servers.latency = latency
    print(servers.endpoint, flush=True)
    sys.stdin.read()


def measure(args: argparse.Namespace, name: str, folder: Path) -> tuple[float, float, float]:
    """Tokens per second of the processor and of the clock, and seconds to the first batch; in a fresh process."""
    if args.cold:
        drop_from_page_cache(folder)
    command = [sys.executable, __file__, "--one", name, "--folder", str(folder), "--workers", str(args.workers)]
    command += ["--batch", str(args.batch), "--batches", str(args.batches), "--rows", args.rows]
    command += ["--per-message", str(args.per_message), *(["--masked"] if args.masked else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    if done.returncode:
        raise RuntimeError(next(line for line in reversed(done.stderr.split("\n")) if "Error" in line))
    first, per_cpu, per_second = map(float, done.stdout.split()[-3:])
    return per_cpu, per_second, first


def drop_from_page_cache(folder: Path) -> None:
    """Have the files read from disk again."""
    for file in (path for path in folder.rglob("*") if path.is_file()):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())  # only what is on disk can be dropped
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def one(args: argparse.Namespace) -> None:
    """Read ``--batches`` batches in one way, and print what it took."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        _seconds()
        loader = WAYS[args.one][0](args, args.folder, cache)
        begin, used = time.perf_counter(), _seconds()
        batches = iter(loader)
        next(batches)
        first = time.perf_counter() - begin
        count = 1
        while count < args.batches and time.perf_counter() - begin < SECONDS and next(batches, None) is not None:
            count += 1
        elapsed = time.perf_counter() - begin
        del batches, loader  # ends the workers, whose time counts then
        numbers = count * args.batch * kind_of(args.rows).counted
        print(first, numbers / (_seconds() - used), numbers / elapsed)


def _seconds() -> float:
    """Of the processor, of this process and its children that have ended."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64, help="of shards (%(default)s)")
    parser.add_argument("--rows", choices=KINDS, default="tokens", help="128 token ids, or blobs of 115,000 bytes")
    parser.add_argument("--batch", type=int, help="rows (256, or 64 blobs)")
    parser.add_argument("--batches", type=int, default=900, help="that are read at most (%(default)s)")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="of the loader (0 1 2)")
    parser.add_argument(
        "--per-message", type=int, default=8, help="batches that a worker of this project sends at once (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts (%(default)s)")
    parser.add_argument("--latency", type=float, default=0.02, help="of S3, in seconds (%(default)s)")
    parser.add_argument("--only", choices=["memory", "S3"], help="leave out the other")
    parser.add_argument("--cold", action="store_true", help="read files from disk, not from page cache")
    parser.add_argument(
        "--masked", action="store_true", help="mask tokens as albert-mlm does; in this project's ways only"
    )
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=list(WAYS), metavar="WAY", help="by name (all)")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ |= {
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    args.batch = args.batch or kind_of(args.rows).batch
    if PEERS.is_dir():
        sys.path.append(str(PEERS))  # last: nothing of them replaces what is installed
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(PEERS)]))
    if args.one:
        args.workers = args.workers[0]
        one(args)
    elif args.serve:
        serve(args.folder, args.latency)
    else:
        compare(args)


def compare(args: argparse.Namespace) -> None:
    if args.masked:
        args.ways = [name for name in args.ways if WAYS[name][0] in (ours, ours_s3)]
    kinds = {name: kind for name, (_, kind) in WAYS.items() if name in args.ways and args.only in (None, kind)}
    ways = [name for name, kind in kinds.items() if args.rows == "tokens" or kind == "S3"]
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        make(folder, args.megabytes, kind_of(args.rows), ways)
        if "S3" in kinds.values():
            os.environ["AWS_ENDPOINT_URL"] = stack.enter_context(served(folder, args.latency))
        print(
            f"| way | workers | {kind_of(args.rows).unit} per CPU second | per second | first batch, s |"
            "\n|---|---|---|---|---|"
        )
        for workers in args.workers:
            args.workers = workers
            print("\n".join(rows(args, ways, folder)), flush=True)


@contextlib.contextmanager
def served(folder: Path, latency: float) -> Iterator[str]:
    """The address of a server with ``folder``."""
    command = [sys.executable, __file__, "--serve", "--folder", str(folder), "--latency", str(latency)]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.kill()


def rows(args: argparse.Namespace, ways: list[str], folder: Path) -> list[str]:
    """A line of each way: medians of rounds in which each has its turn, so that a slow minute is one of all ways."""
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
    failed: dict[str, str] = {}
    for _ in range(args.rounds):
        for way in (one for one in ways if one not in failed):
            try:
                found[way].append(measure(args, way, folder))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                failed[way] = f"| {way} | {args.workers} | {error} | | |"
    return [failed.get(way) or line(args, way, found[way]) for way in ways]


def line(args: argparse.Namespace, way: str, found: list[tuple[float, float, float]]) -> str:
    cpu, clock, first = (statistics.median(column) for column in zip(*found, strict=True))
    return f"| {way} | {args.workers} | {cpu:.4g} | {clock:.4g} | {first:.2f} |"


if __name__ == "__main__":
    main()
