# SPDX-License-Identifier: Apache-2.0
"""Tokenises the text of one shard, and does so for many in parallel; imports neither torch nor transformers."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lightning_sagemaker.recipes._common.files import write_text
from lightning_sagemaker.recipes._common.preparation import TOKENIZER_FOLDER
from lightning_sagemaker.recipes.albert_mlm.packing import Packer, Words, one_segment, two_segments
from lightning_sagemaker.recipes.albert_mlm.shards import write_shard

SPLITS = ("train", "val", "test")

RECORDS = ".shard-*.json"
"""In the folder of an interrupted run: what each finished shard holds."""

_BATCH_CHARACTERS = 500_000
"""Text that is tokenised at once."""


@dataclass(frozen=True)
class ShardJob:
    """One shard of each split; plain values, as it is sent to other processes."""

    folder: str
    length: int
    sentence_order: bool
    val_fraction: float
    test_fraction: float
    cls_sep: tuple[int, int]
    special: tuple[int, ...]
    vocab_size: int
    number: int = 0
    parallel: bool = True

    @property
    def record(self) -> Path:
        """Where the result is kept until all shards are made."""
        return Path(self.folder) / f".shard-{self.number:05d}.json"

    def finished(self) -> dict[str, Any] | None:
        """The result of an earlier run, if its files are whole."""
        try:
            result: dict[str, Any] = json.loads(self.record.read_text())
            sizes = {name: (Path(self.folder) / name).stat().st_size for name in result["files"]}
        except (OSError, ValueError, KeyError):
            return None
        return result if all(result["files"][name]["bytes"] == size for name, size in sizes.items()) else None

    def __call__(self, documents: list[str]) -> dict[str, Any]:
        """Make the shard of each split: how many articles and characters were read, and the manifest's entries."""
        os.environ["TOKENIZERS_PARALLELISM"] = str(self.parallel).lower()
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(Path(self.folder) / TOKENIZER_FOLDER / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        words = Words.of(tokenizer, *self.cls_sep, self.special)
        packers = {split: Packer(self.length - 2 - self.sentence_order, words.sep) for split in SPLITS}
        encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)  # without places in the text
        for batch in _batches(documents):
            for document, encoding in zip(batch, encode(batch, add_special_tokens=False), strict=True):
                packers[split_of(document, self.val_fraction, self.test_fraction)].add(encoding.ids)
        files: dict[str, Any] = {}
        for split, packer in packers.items():
            bodies = packer.sequences()
            rows, first = two_segments(bodies, words) if self.sentence_order else (one_segment(bodies, words), None)
            files |= write_shard(Path(self.folder), split, self.number, rows, first, self.vocab_size)
        result = {"articles": len(documents), "characters": sum(map(len, documents)), "files": files}
        write_text(self.record, json.dumps(result))
        return result


def run_jobs(job: ShardJob, chunks: Iterator[list[str]], workers: int) -> Iterator[dict[str, Any]]:
    """The results in order. ``workers`` 0: in this process, where the tokenizer's own threads share the work."""
    numbered = ((replace(job, number=number), chunk) for number, chunk in enumerate(chunks))
    if not workers:
        for one, chunk in numbered:
            yield one.finished() or one(chunk)
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    waiting: list[Future[dict[str, Any]] | dict[str, Any]] = []
    try:
        for one, chunk in numbered:
            done = one.finished()
            waiting.append(done or pool.submit(replace(one, parallel=False), chunk))
            if len(waiting) > workers + 1:  # not more, or the text would pile up in memory
                yield _result(waiting.pop(0))
        yield from map(_result, waiting)
    finally:
        pool.shutdown(cancel_futures=True)


def _result(waiting: Future[dict[str, Any]] | dict[str, Any]) -> dict[str, Any]:
    return waiting if isinstance(waiting, dict) else waiting.result()


def _batches(documents: list[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def split_of(document: str, val_fraction: float, test_fraction: float) -> str:
    """By the article's text, so neither its place in the files nor other articles matter."""
    place = int.from_bytes(hashlib.blake2b(document.encode(), digest_size=8).digest(), "big") / (1 << 64)
    if place < val_fraction:
        return "val"
    return "test" if place < val_fraction + test_fraction else "train"
