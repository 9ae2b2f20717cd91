# SPDX-License-Identifier: Apache-2.0
"""Makes what benchmarks/data.py reads: shards of random tokens, and the same rows in the formats of others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

LENGTH, VOCABULARY = 128, 30000


def make(folder: Path, megabytes: int) -> None:
    """Shards of 8 MiB with an index, and the same rows as the others want them, where their packages are installed."""
    from lightning_sagemaker.data.block_index import INDEX, index_shards, index_text

    random = np.random.default_rng(0)
    files = []
    for number in range(megabytes // 8):
        rows = random.integers(0, VOCABULARY, (8 * 2**20 // 2 // LENGTH, LENGTH)).astype(np.uint16)
        files.append(f"train-{number:05d}.npy")
        np.save(folder / files[-1], rows)
    (folder / INDEX).write_text(index_text(index_shards(folder, {"train": [files]})))
    for convert in (_make_arrow, _make_litdata, _make_tars):
        try:
            convert(folder, [folder / name for name in files])
        except ImportError as error:
            print(f"left out: {error.name} is not installed", flush=True)


def _make_arrow(folder: Path, files: list[Path]) -> None:
    import datasets
    import pyarrow
    from pyarrow import parquet

    (folder / "parquet").mkdir()
    tables = []
    for file in files:
        rows = np.load(file)
        column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.reshape(-1)), LENGTH)
        tables.append(pyarrow.table({"tokens": column}))
        parquet.write_table(tables[-1], folder / "parquet" / f"{file.stem}.parquet")
    features = datasets.Features({"tokens": datasets.Sequence(datasets.Value("uint16"), length=LENGTH)})
    datasets.Dataset(pyarrow.concat_tables(tables)).cast(features).save_to_disk(str(folder / "arrow"))


def _litdata_rows(path: str) -> Iterator[torch.Tensor]:
    yield torch.from_numpy(np.load(path).reshape(-1).astype(np.int32))


def _make_litdata(folder: Path, files: list[Path]) -> None:
    import litdata
    from litdata.streaming import TokensLoader

    litdata.optimize(
        fn=_litdata_rows,
        inputs=[str(file) for file in files],
        output_dir=str(folder / "litdata"),
        chunk_size=2**20 // 4,
        item_loader=TokensLoader(block_size=LENGTH),
        num_workers=1,
    )


def _make_tars(folder: Path, files: list[Path]) -> None:
    import webdataset

    (folder / "tar").mkdir()
    for number, file in enumerate(files):
        with webdataset.TarWriter(str(folder / "tar" / f"{number:05d}.tar")) as tar:
            for place, row in enumerate(np.load(file)):
                tar.write({"__key__": f"{number:05d}{place:07d}", "bin": row.tobytes()})
