# SPDX-License-Identifier: Apache-2.0
"""Other ways to read what benchmarks/data_files.py makes, each as its documentation has it."""

from __future__ import annotations

import argparse
import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from data_files import import_mosaicml, kind_of
from torch.utils.data import DataLoader, Dataset

BUCKET, PREFIX = "corpus", "shards"
ADDRESS = f"s3://{BUCKET}/{PREFIX}"


class Rows(Dataset[Any]):
    """One row at a time, from memory maps: what most scripts have."""

    def __init__(self, files: list[Path]) -> None:
        self._maps = [np.load(file, mmap_mode="r") for file in files]
        self._ends = np.cumsum([len(rows) for rows in self._maps])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> torch.Tensor:
        shard = int(np.searchsorted(self._ends, index, side="right"))
        found = self._maps[shard][index - self._ends[shard]]
        return torch.from_numpy(found.astype(np.int64 if found.dtype == np.uint16 else found.dtype))


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
    rows = np.load(io.BytesIO(reader.read()))
    rows = rows.astype(np.int64) if rows.dtype == np.uint16 else rows  # token ids, as embeddings take them
    return torch.from_numpy(np.random.default_rng(0).permutation(rows))


def _rebatched(shards: Iterable[torch.Tensor], size: int) -> Iterator[torch.Tensor]:
    for shard in shards:
        yield from shard[: len(shard) // size * size].split(size)


def litdata_memory(args: argparse.Namespace, folder: Path, cache: str) -> Iterable[Any]:
    """Litdata's ``StreamingDataset`` from a local folder."""
    return _litdata(args, str(folder / "litdata"), None)


def litdata_s3(args: argparse.Namespace, folder: Path, cache: str) -> Iterable[Any]:
    """The same from S3, with chunks of 1 MiB and an empty cache."""
    return _litdata(args, f"s3://{BUCKET}/litdata", cache)


def _litdata(args: argparse.Namespace, address: str, cache: str | None) -> Iterable[Any]:
    import litdata
    from litdata.streaming import TokensLoader, downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # the server here has no TLS, and no option leads there
    kind = kind_of(args.rows)
    data = litdata.StreamingDataset(
        address,
        cache_dir=cache,
        item_loader=TokensLoader(block_size=kind.width) if args.rows == "tokens" else None,
        shuffle=True,
        drop_last=True,
        storage_options={"endpoint_url": os.environ["AWS_ENDPOINT_URL"]} if cache else {},
    )
    return litdata.StreamingDataLoader(data, batch_size=args.batch, num_workers=args.workers, drop_last=True)


def mosaicml_memory(args: argparse.Namespace, folder: Path, cache: str) -> Iterable[Any]:
    """MosaicML's ``StreamingDataset`` from a local folder."""
    return _mosaicml(args, None, str(folder / "mds"))


def mosaicml_s3(args: argparse.Namespace, folder: Path, cache: str) -> Iterable[Any]:
    """The same from S3, with an empty cache."""
    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    return _mosaicml(args, f"s3://{BUCKET}/mds", cache)


def _mosaicml(args: argparse.Namespace, remote: str | None, local: str) -> Iterable[Any]:
    streaming = import_mosaicml()
    streaming.base.util.clean_stale_shared_memory()
    data = streaming.StreamingDataset(remote=remote, local=local, shuffle=True, batch_size=args.batch)
    return DataLoader(data, batch_size=args.batch, num_workers=args.workers, drop_last=True)


def webdataset_s3(args: argparse.Namespace, folder: Path, cache: str) -> Iterable[Any]:
    """webdataset: a tar per shard, read by ``curl``, with a buffer of 10,000 rows to shuffle."""
    import webdataset

    kind = kind_of(args.rows)
    count = len(list((folder / "tar").glob("*.tar")))
    address = f"pipe:curl -s {os.environ['AWS_ENDPOINT_URL']}/{BUCKET}/tar/{{00000..{count - 1:05d}}}.tar"
    data = webdataset.WebDataset(address, shardshuffle=count, empty_check=False).shuffle(10_000)
    data = data.map(lambda sample: kind.read(sample["bin"])).batched(args.batch, partial=False)
    return webdataset.WebLoader(data, batch_size=None, num_workers=args.workers)
