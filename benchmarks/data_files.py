# SPDX-License-Identifier: Apache-2.0
"""Makes what benchmarks/data.py reads: shards of random tokens, and the same rows in the formats of others."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

VOCABULARY = 30000

PEERS = Path(__file__).resolve().parents[1] / ".containers" / "peers"
"""Made by ``make peers``."""


@dataclass(frozen=True)
class Kind:
    """Of rows.

    Args:
        width: Numbers in a row.
        dtype: Of the numbers.
        batch: Rows.
        counted: What a row adds to a rate, in ``unit``.

    """

    width: int
    dtype: str
    batch: int
    counted: float
    unit: str

    def read(self, content: bytes) -> npt.NDArray[Any]:
        """A row as it is trained on: token ids as embeddings take them."""
        row = np.frombuffer(content, self.dtype)
        return row.astype(np.int64) if self.dtype == "uint16" else row


KINDS = {
    "tokens": Kind(128, "uint16", 256, 128 / 1e6, "million tokens"),
    "blobs": Kind(115_000, "uint8", 64, 1.0, "blobs"),
}


def kind_of(name: str) -> Kind:
    """Of ``--rows``."""
    return KINDS[name]


def import_mosaicml() -> Any:
    """``streaming``, which imports torchvision for data sets of pictures; they are not used here."""
    import transformers.feature_extraction_utils  # noqa: F401  looks for torchvision, and must find none

    names = ["torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"]
    sys.modules.update({name: types.ModuleType(name) for name in names})
    vars(sys.modules["torchvision.datasets"])["VisionDataset"] = object
    vars(sys.modules["torchvision.transforms.functional"])["to_tensor"] = None
    import streaming

    return streaming


def make(folder: Path, megabytes: int, kind: Kind, ways: list[str]) -> None:
    """Shards of 8 MiB with an index, and the same rows for those of ``ways`` that have a format and are installed."""
    from lightning_sagemaker.data.block_index import INDEX, index_shards, index_text

    random = np.random.default_rng(0)
    files = []
    for number in range(megabytes // 8):
        size = kind.width * np.dtype(kind.dtype).itemsize
        rows = random.integers(0, VOCABULARY, (8 * 2**20 // size, kind.width)).astype(kind.dtype)
        files.append(f"train-{number:05d}.npy")
        np.save(folder / files[-1], rows)
    (folder / INDEX).write_text(index_text(index_shards(folder, {"train": [files]})))
    converters = {
        "datasets": _make_arrow,
        "litdata": _make_litdata,
        "mosaicml": _make_mosaicml,
        "webdataset": _make_tars,
    }
    for package, convert in converters.items():
        if not any(way.startswith(package) for way in ways):
            continue
        try:
            convert(folder, [folder / name for name in files], kind)
        except ImportError as error:
            print(f"left out: {error.name} is not installed", flush=True)


def _make_arrow(folder: Path, files: list[Path], kind: Kind) -> None:
    import datasets
    import pyarrow
    from pyarrow import parquet

    (folder / "parquet").mkdir()
    tables = []
    for file in files:
        rows = np.load(file)
        column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.reshape(-1)), kind.width)
        tables.append(pyarrow.table({"tokens": column}))
        parquet.write_table(tables[-1], folder / "parquet" / f"{file.stem}.parquet")
    features = datasets.Features({"tokens": datasets.Sequence(datasets.Value(kind.dtype), length=kind.width)})
    datasets.Dataset(pyarrow.concat_tables(tables)).cast(features).save_to_disk(str(folder / "arrow"))


def _litdata_rows(path: str, tokens: bool) -> Iterator[Any]:
    rows = np.load(path)
    if tokens:
        yield torch.from_numpy(rows.reshape(-1).astype(np.int32))
    else:
        yield from rows  # a sample each


def _make_litdata(folder: Path, files: list[Path], kind: Kind) -> None:
    import litdata
    from litdata.streaming import TokensLoader

    tokens = kind.dtype == "uint16"
    size: dict[str, Any] = {"chunk_bytes": 8 * 2**20}
    if tokens:
        size = {"chunk_size": 2**20 // 4, "item_loader": TokensLoader(block_size=kind.width)}
    litdata.optimize(
        fn=partial(_litdata_rows, tokens=tokens),
        inputs=[str(file) for file in files],
        output_dir=str(folder / "litdata"),
        num_workers=1,
        **size,
    )


def _make_mosaicml(folder: Path, files: list[Path], kind: Kind) -> None:
    streaming = import_mosaicml()
    columns = {"rows": f"ndarray:{kind.dtype}:{kind.width}"}
    with streaming.MDSWriter(out=str(folder / "mds"), columns=columns, size_limit=8 * 2**20) as writer:
        for file in files:
            for row in np.load(file):
                writer.write({"rows": row})


def _make_tars(folder: Path, files: list[Path], kind: Kind) -> None:
    import webdataset

    (folder / "tar").mkdir()
    for number, file in enumerate(files):
        with webdataset.TarWriter(str(folder / "tar" / f"{number:05d}.tar")) as tar:
            for place, row in enumerate(np.load(file)):
                tar.write({"__key__": f"{number:05d}{place:07d}", "bin": row.tobytes()})
