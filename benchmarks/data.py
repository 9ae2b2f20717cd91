# SPDX-License-Identifier: Apache-2.0
"""Tokens a second from page cache and from S3, and the time to the first batch, beside other ways of reading them.

``python benchmarks/data.py`` makes shards of random tokens, starts a server with S3's API (moto) behind a proxy that adds
20 ms to each request, and reads the same rows in each way, one after the other, several rounds. Ways whose package is not
installed are left out and named. Tokens are counted by seconds of the processor, of the reading process and its workers,
which other programs on the machine change little, and by those of the clock.
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from data_files import LENGTH, make
from torch.utils.data import DataLoader, Dataset

BUCKET, PREFIX = "corpus", "shards"
ADDRESS = f"s3://{BUCKET}/{PREFIX}"

Way = Callable[[argparse.Namespace, Path, str], Iterable[Any]]


class Rows(Dataset[Any]):
    """One row at a time, from memory maps: what most scripts have."""

    def __init__(self, files: list[Path]) -> None:
        self._maps = [np.load(file, mmap_mode="r") for file in files]
        self._ends = np.cumsum([len(rows) for rows in self._maps])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> torch.Tensor:
        shard = int(np.searchsorted(self._ends, index, side="right"))
        return torch.from_numpy(self._maps[shard][index - self._ends[shard]].astype(np.int64))


class Batches(Dataset[Any]):
    """A batch at a time, from this project's shards."""

    def __init__(self, shards: Any) -> None:
        self._shards = shards

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, draws: list[int]) -> torch.Tensor:
        return {"ids": torch.from_numpy(self._shards.rows(np.asarray(draws) % len(self)))}


def ours(args: argparse.Namespace, folder: Path, cache: str) -> Iterable[Any]:
    """This project, from page cache."""
    from lightning_sagemaker.data.batches import TrainingBatches
    from lightning_sagemaker.data.handover import hand_over
    from lightning_sagemaker.recipes.albert_mlm.shards import Shards

    shards = Shards(folder, {file.name: {} for file in sorted(folder.glob("train-*.npy"))})
    batches = TrainingBatches(len(shards), args.batch)
    return DataLoader(Batches(shards), None, sampler=batches, num_workers=args.workers, collate_fn=hand_over)


def ours_s3(args: argparse.Namespace, folder: Path, cache: str) -> Iterable[Any]:
    """This project, from S3 with an empty cache."""
    from lightning_sagemaker.data.batches import TrainingBatches
    from lightning_sagemaker.data.block_index import INDEX, read_index
    from lightning_sagemaker.data.handover import hand_over
    from lightning_sagemaker.data.s3_objects import S3Objects
    from lightning_sagemaker.data.streamed import StreamedRows
    from lightning_sagemaker.recipes.albert_mlm.streamed import StreamedShards

    objects = S3Objects()
    objects.connect()
    rows = StreamedRows(ADDRESS, read_index((folder / INDEX).read_text()), Path(cache), 32 * 10**9, objects)
    shards = StreamedShards(rows, "train")
    batches = TrainingBatches(len(shards), args.batch, blocks=shards.blocks)
    shards.look_ahead(batches)
    return DataLoader(Batches(shards), None, sampler=batches, num_workers=args.workers, collate_fn=hand_over)


def plain(args: argparse.Namespace, folder: Path, cache: str) -> Iterable[Any]:
    """A DataLoader over memory maps, row by row."""
    rows = Rows(sorted(folder.glob("train-*.npy")))
    return DataLoader(rows, batch_size=args.batch, shuffle=True, drop_last=True, num_workers=args.workers)


def datasets_mapped(args: argparse.Namespace, folder: Path, cache: str) -> Iterable[Any]:
    """``datasets`` from Arrow files, shuffled by index, a batch at a time."""
    import datasets

    data = datasets.load_from_disk(str(folder / "arrow")).with_format("torch", columns=["tokens"])
    sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), args.batch, drop_last=True)
    loader = DataLoader(data, batch_size=None, sampler=sampler, num_workers=args.workers)
    return (batch["tokens"] for batch in loader)


def datasets_streaming(args: argparse.Namespace, folder: Path, cache: str) -> Iterable[Any]:
    """``datasets`` streaming Parquet files from disk, with a buffer of 10,000 rows to shuffle."""
    import datasets

    files = [str(file) for file in sorted((folder / "parquet").glob("*.parquet"))]
    data = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    data = data.shuffle(seed=0, buffer_size=10_000).with_format("torch")
    loader = DataLoader(data, batch_size=args.batch, drop_last=True, num_workers=min(args.workers, len(files)))
    return (batch["tokens"] for batch in loader)


def connector_s3(args: argparse.Namespace, folder: Path, cache: str) -> Iterable[Any]:
    """s3torchconnector's ``S3IterableDataset``: a shard per object, rows of a shard in random order."""
    from s3torchconnector import S3ClientConfig, S3IterableDataset

    data = S3IterableDataset.from_prefix(
        ADDRESS + "/train-",
        region="us-east-1",
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        transform=_shard_rows,
        enable_sharding=True,
        s3client_config=S3ClientConfig(force_path_style=True),
    )
    loader = DataLoader(data, batch_size=None, num_workers=args.workers)
    return _rebatched(loader, args.batch)


def _shard_rows(reader: Any) -> torch.Tensor:
    rows = np.load(io.BytesIO(reader.read())).astype(np.int64)
    return torch.from_numpy(np.random.default_rng(0).permutation(rows))


def _rebatched(shards: Iterable[torch.Tensor], size: int) -> Iterator[torch.Tensor]:
    for shard in shards:
        yield from shard[: len(shard) // size * size].split(size)


def litdata_s3(args: argparse.Namespace, folder: Path, cache: str) -> Iterable[Any]:
    """Litdata's ``StreamingDataset`` with its token loader and chunks of 1 MiB, an empty cache."""
    import litdata
    from litdata.streaming import TokensLoader

    data = litdata.StreamingDataset(
        f"s3://{BUCKET}/litdata",
        cache_dir=cache,
        item_loader=TokensLoader(block_size=LENGTH),
        shuffle=True,
        drop_last=True,
        storage_options={"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
    )
    return litdata.StreamingDataLoader(data, batch_size=args.batch, num_workers=args.workers, drop_last=True)


def webdataset_s3(args: argparse.Namespace, folder: Path, cache: str) -> Iterable[Any]:
    """webdataset: a tar per shard, read by ``curl``, with a buffer of 10,000 rows to shuffle."""
    import webdataset

    count = len(list((folder / "tar").glob("*.tar")))
    address = f"pipe:curl -s {os.environ['AWS_ENDPOINT_URL']}/{BUCKET}/tar/{{00000..{count - 1:05d}}}.tar"
    data = webdataset.WebDataset(address, shardshuffle=count, empty_check=False).shuffle(10_000)
    data = data.map(lambda sample: np.frombuffer(sample["bin"], np.uint16).astype(np.int64)).batched(
        args.batch, partial=False
    )
    return webdataset.WebLoader(data, batch_size=None, num_workers=args.workers)


WAYS: dict[str, tuple[Way, str]] = {
    "lightning-sagemaker": (ours, "memory"),
    "DataLoader over memory maps": (plain, "memory"),
    "datasets, mapped": (datasets_mapped, "memory"),
    "datasets, streaming": (datasets_streaming, "memory"),
    "lightning-sagemaker, S3": (ours_s3, "S3"),
    "s3torchconnector, S3": (connector_s3, "S3"),
    "litdata, S3": (litdata_s3, "S3"),
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
        key = name if file.parent.name in ("litdata", "tar") else f"{PREFIX}/{name}"
        if file.parent.name not in ("arrow", "parquet"):
            client.upload_file(str(file), BUCKET, key, ExtraArgs={"ACL": "public-read"})
    servers.latency = latency
    print(servers.endpoint, flush=True)
    sys.stdin.read()


def measure(args: argparse.Namespace, name: str, folder: Path) -> tuple[float, float, float]:
    """Tokens per second of the processor and of the clock, and seconds to the first batch; in a fresh process."""
    command = [sys.executable, __file__, "--one", name, "--folder", str(folder), "--workers", str(args.workers)]
    command += ["--batch", str(args.batch), "--batches", str(args.batches)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    first, per_cpu, per_second = map(float, done.stdout.split()[-3:])
    return per_cpu, per_second, first


def one(args: argparse.Namespace) -> None:
    """Read ``--batches`` batches in one way, and print what it took."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as cache:
        _seconds()
        loader = WAYS[args.one][0](args, args.folder, cache)
        begin, used = time.perf_counter(), _seconds()
        batches = iter(loader)
        next(batches)
        first = time.perf_counter() - begin
        count = 1
        while count < args.batches and next(batches, None) is not None:
            count += 1
        elapsed = time.perf_counter() - begin
        del batches, loader  # ends the workers, whose time counts then
        tokens = count * args.batch * LENGTH
        print(first, tokens / (_seconds() - used), tokens / elapsed)


def _seconds() -> float:
    """Of the processor, of this process and its children that have ended."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64, help="of shards (%(default)s)")
    parser.add_argument("--batch", type=int, default=256, help="rows (%(default)s)")
    parser.add_argument("--batches", type=int, default=900, help="that are read at most (%(default)s)")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="of the loader (0 1 2)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts (%(default)s)")
    parser.add_argument("--latency", type=float, default=0.02, help="of S3, in seconds (%(default)s)")
    parser.add_argument("--only", choices=["memory", "S3"], help="leave out the other")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    if args.one:
        args.workers = args.workers[0]
        one(args)
    elif args.serve:
        serve(args.folder, args.latency)
    else:
        compare(args)


def compare(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, args.megabytes)
        command = [sys.executable, __file__, "--serve", "--folder", name, "--latency", str(args.latency)]
        server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            assert server.stdout is not None
            os.environ["AWS_ENDPOINT_URL"] = server.stdout.readline().strip()
            print(
                "| way | workers | M tokens per CPU second | M tokens per second | first batch, s |\n|---|---|---|---|---|"
            )
            for workers in args.workers:
                args.workers = workers
                for way, (_, kind) in WAYS.items():
                    if args.only in (None, kind):
                        print(row(args, way, folder), flush=True)
        finally:
            server.kill()


def row(args: argparse.Namespace, way: str, folder: Path) -> str:
    try:
        found = [measure(args, way, folder) for _ in range(args.rounds)]
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return f"| {way} | {args.workers} | {error} | | |"
    cpu, clock, first = (statistics.median(column) for column in zip(*found, strict=True))
    return f"| {way} | {args.workers} | {cpu / 1e6:.1f} | {clock / 1e6:.1f} | {first:.2f} |"


if __name__ == "__main__":
    main()
