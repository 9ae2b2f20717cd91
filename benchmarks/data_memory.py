# SPDX-License-Identifier: Apache-2.0
"""Memory of a loader's worker, in MB above the interpreter's with its imports, while it reads text of any size.

``python benchmarks/data_memory.py --gigabytes 20`` reads shards that are files with holes, which take no disk, through
memory maps; and the same rows streamed from a source that makes them up, through a store of 1 GB. Counted is what the kernel
cannot take back: anonymous pages and shared memory. Pages of mapped files are the page cache, and are named apart.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from lightning_sagemaker.data.batches import TrainingBatches
from lightning_sagemaker.data.block_index import Column, SplitIndex
from lightning_sagemaker.data.handover import hand_over
from lightning_sagemaker.data.streamed import StreamedRows
from lightning_sagemaker.recipes._common.data.loaders import RecipeLoader
from lightning_sagemaker.recipes.albert_mlm.shards import Shards
from lightning_sagemaker.recipes.albert_mlm.streamed import StreamedShards

WIDTH, ROWS, BATCH = 128, 1 << 22, 256
"""Tokens in a row, rows in a shard of 1 GiB, rows in a batch."""


def memory(pid: int) -> tuple[float, float]:
    """MB of a process that are its own, and of files that it maps."""
    found = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    own, shared, files = (int(found[name].split()[0]) / 1e3 for name in ("RssAnon", "RssShmem", "RssFile"))
    return own + shared, files


class Measured(Dataset[Any]):
    """Batches, with the memory of the worker that has made them."""

    depends_on_indices_only = True

    def __init__(self, shards: Any) -> None:
        self._shards = shards

    def __getitem__(self, draws: list[int]) -> dict[str, torch.Tensor]:
        rows = self._shards.rows(np.asarray(draws) % len(self._shards))
        return {"rows": torch.from_numpy(rows), "memory": torch.tensor(memory(os.getpid()))}


class MadeUp:
    """In the place of S3: rows of zeros."""

    def read_into(self, bucket: str, key: str, begin: int, buffer: memoryview) -> None:
        buffer[:] = bytes(len(buffer))


def mapped(folder: Path, gigabytes: int) -> Shards:
    """Shards with holes."""
    for number in range(gigabytes):
        np.lib.format.open_memmap(folder / f"train-{number:05d}.npy", "w+", np.uint16, (ROWS, WIDTH))
    return Shards(folder, {file.name: {} for file in folder.glob("*.npy")})


def streamed(folder: Path, gigabytes: int) -> StreamedShards:
    """Rows that are made up, through a store."""
    files, block = [f"train-{number:05d}.npy" for number in range(gigabytes)], 4096
    column = Column(tuple(files), (ROWS,) * gigabytes, (128,) * gigabytes, "<u2", WIDTH)
    blocks = ROWS * gigabytes // block
    index = SplitIndex(block, (column,), (zlib.crc32(bytes(block * WIDTH * 2)),) * blocks)
    rows = StreamedRows("s3://made/up", {"train": index}, folder, 10**9, MadeUp())
    return StreamedShards(rows, "train")


KINDS = {"mapped": mapped, "streamed": streamed}


def measure(kind: str, gigabytes: int, batches: int) -> tuple[float, float, int]:
    """Most MB of a worker above the interpreter, MB of mapped files, and the rows there are."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        before = memory(os.getpid())[0]
        shards: Any = KINDS[kind](Path(name), gigabytes)
        order = TrainingBatches(len(shards), BATCH, blocks=shards.blocks)
        shards.look_ahead(order)
        loader = RecipeLoader(Measured(shards), batch_size=None, sampler=order, num_workers=1, collate_fn=hand_over)
        found = [batch["memory"].numpy() for batch, _ in zip(loader, range(batches), strict=False)]
        own, files = np.max(found, axis=0)
    return float(own - before), float(files), len(shards)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=int, default=20, help="of rows (%(default)s)")
    parser.add_argument("--batches", type=int, default=5000, help="of 256 rows to read (%(default)s)")
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=list(KINDS), help="how to read them (%(default)s)")
    args = parser.parse_args()
    for kind in args.kind:
        own, files, rows = measure(kind, args.gigabytes, args.batches)
        print(f"{kind}: {rows} rows, {own:.0f} MB above the interpreter, {files:.0f} MB of mapped files", flush=True)


if __name__ == "__main__":
    main()
