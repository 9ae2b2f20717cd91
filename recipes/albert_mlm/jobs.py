# SPDX-License-Identifier: Apache-2.0
"""Tokenizes the text of shards, many in parallel; imports neither torch nor transformers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lightning_sagemaker.data.parent import end_with_parent
from lightning_sagemaker.recipes._common.data.checksums import find_fault
from lightning_sagemaker.recipes._common.data.preparation import TOKENIZER_FOLDER
from lightning_sagemaker.recipes.albert_mlm.packing import Packer, Words, one_segment, two_segments
from lightning_sagemaker.recipes.albert_mlm.shards import write_shard
from lightning_sagemaker.text_files import write_text

SPLITS = ("train", "val", "test")

RECORDS = ".shard-*.json"
"""Files in the folder of an interrupted run: the manifest entries of each finished shard."""

Chunk = tuple[str | None, list[str]]
"""Split and articles of one shard; split ``None``: each article's text decides its split."""

_BATCH_CHARACTERS = 500_000
"""Characters that are tokenized at once."""


@dataclass(frozen=True)
class ShardJob:
    """Makes one shard of each split; has plain values only, as it is sent to other processes."""

    folder: str
    length: int
    sentence_order: bool
    val_fraction: float
    test_fraction: float
    cls_sep: tuple[int, int]
    special: tuple[int, ...]
    vocab_size: int
    number: int = 0
    split: str | None = None
    """Split of all its articles; ``None``: decided by each article's text."""
    parallel: bool = True

    def finished(self, documents: list[str]) -> dict[str, Any] | None:
        """The result of an earlier run, if its files are unchanged, else ``None``."""
        try:
            files: dict[str, Any] = json.loads(_record(Path(self.folder), self.number).read_text())["files"]
        except (OSError, ValueError, KeyError):
            return None
        folder = Path(self.folder)
        changed = any(find_fault(folder, name, entry) for name, entry in files.items())
        return None if changed else _counted(documents, files)

    def __call__(self, documents: list[str]) -> dict[str, Any]:
        """Write the shards; returns the numbers of ``articles`` and ``characters``, and the manifest's ``files``."""
        os.environ["TOKENIZERS_PARALLELISM"] = str(self.parallel).lower()
        tokenizer, words = self.open()
        packers = self.packers(words)
        for batch in by_characters(documents, _BATCH_CHARACTERS):
            self.pack(batch, tokenizer, packers)
        files: dict[str, Any] = {}
        for split, packer in packers.items():
            bodies = packer.sequences()
            rows, first = two_segments(bodies, words) if self.sentence_order else (one_segment(bodies, words), None)
            files |= write_shard(Path(self.folder), split, self.number, rows, first, self.vocab_size)
        write_record(Path(self.folder), self.number, files)
        return _counted(documents, files)

    def open(self) -> tuple[Any, Words]:
        """The tokenizer, and the properties of its tokens that packing needs."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(Path(self.folder) / TOKENIZER_FOLDER / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer, Words.of(tokenizer, *self.cls_sep, self.special)

    def packers(self, words: Words) -> dict[str, Packer]:
        """An empty packer for each split."""
        return {split: Packer(self.length - 2 - self.sentence_order, words.sep) for split in SPLITS}

    def pack(self, documents: list[str], tokenizer: Any, packers: Mapping[str, Packer]) -> None:
        """Tokenize the articles of the splits that have a packer."""
        chosen = [(split, text) for text in documents if (split := self.split_of(text)) in packers]
        encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)  # without offsets
        encodings = encode([text for _, text in chosen], add_special_tokens=False)
        for (split, _), encoding in zip(chosen, encodings, strict=True):
            packers[split].add(encoding.ids)

    def split_of(self, document: str) -> str:
        """The split that an article belongs to."""
        return self.split or split_of(document, self.val_fraction, self.test_fraction)


def write_record(folder: Path, number: int, files: Mapping[str, Any]) -> None:
    """Record that a shard is finished, for a run that resumes.

    Args:
        folder: Folder of the shards.
        number: Number of the shard.
        files: Manifest entries of the shard.

    """
    write_text(_record(folder, number), json.dumps({"files": files}))


def finished_files(folder: Path) -> dict[str, Any]:
    """Name -> entry of each file of the shards that are finished so far."""
    found: dict[str, Any] = {}
    for record in sorted(folder.glob(RECORDS)):
        with contextlib.suppress(OSError, ValueError, KeyError):  # being deleted, as all shards are finished
            found |= json.loads(record.read_text())["files"]
    return found


def _record(folder: Path, number: int) -> Path:
    return folder / f".shard-{number:05d}.json"


def run_jobs(job: ShardJob, chunks: Iterable[Chunk], workers: int) -> Iterator[dict[str, Any]]:
    """The results in order. ``workers`` 0: computed in this process, by the tokenizer's own threads."""
    numbered = ((replace(job, number=number, split=split), text) for number, (split, text) in enumerate(chunks))
    if not workers:
        for one, documents in numbered:
            yield one.finished(documents) or one(documents)
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=end_with_parent)
    waiting: list[Future[dict[str, Any]] | dict[str, Any]] = []
    try:
        for one, documents in numbered:
            done = one.finished(documents)
            waiting.append(done or pool.submit(replace(one, parallel=False), documents))
            if len(waiting) > workers + 1:  # not more, or the text would pile up in memory
                yield _result(waiting.pop(0))
        yield from map(_result, waiting)
    finally:
        pool.shutdown(cancel_futures=True)


def find_short_splits(job: ShardJob, chunks: Iterable[Chunk], wanted: Iterable[str]) -> dict[str, int]:
    """Number of articles of each of the ``wanted`` splits that would have no sequence.

    Stops reading when all splits have one: of most texts after the first few articles.
    """
    tokenizer, words = job.open()
    articles = dict.fromkeys(wanted, 0)
    for split, documents in chunks:
        if not articles:
            break
        one = replace(job, split=split)
        packers = {name: packer for name, packer in job.packers(words).items() if name in articles}
        for batch in by_characters(documents, _BATCH_CHARACTERS):
            for name in map(one.split_of, batch):
                if name in articles:
                    articles[name] += 1
            one.pack(batch, tokenizer, packers)
            for name in [name for name, packer in packers.items() if len(one_segment(packer.sequences(), words))]:
                del packers[name], articles[name]
    return articles


def _counted(documents: list[str], files: Mapping[str, Any]) -> dict[str, Any]:
    return {"articles": len(documents), "characters": sum(map(len, documents)), "files": dict(files)}


def _result(waiting: Future[dict[str, Any]] | dict[str, Any]) -> dict[str, Any]:
    return waiting if isinstance(waiting, dict) else waiting.result()


def by_characters(documents: Iterable[str], least: int) -> Iterator[list[str]]:
    """Lists of documents of at least ``least`` characters each; the last may have fewer."""
    batch: list[str] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document)
        if characters >= least:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def split_of(document: str, val_fraction: float, test_fraction: float) -> str:
    """Split of an article, by a hash of its text: its position and other articles do not matter."""
    place = int.from_bytes(hashlib.blake2b(document.encode(), digest_size=8).digest(), "big") / (1 << 64)
    if place < val_fraction:
        return "val"
    return "test" if place < val_fraction + test_fraction else "train"
