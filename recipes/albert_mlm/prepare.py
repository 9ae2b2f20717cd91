# SPDX-License-Identifier: Apache-2.0
"""Tokenises the text into a cache of shards; imports neither torch nor transformers, as its processes are many."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lightning_sagemaker.recipes._common import preparation as _preparation
from lightning_sagemaker.recipes._common.cache import (
    MANIFEST,
    complete_manifest,
    damages,
    load_manifest,
    manifest_text,
    read_manifest,
)
from lightning_sagemaker.recipes._common.files import write_text
from lightning_sagemaker.recipes._common.fingerprints import pretrained_fingerprint
from lightning_sagemaker.recipes._common.preparation import TOKENIZER_FOLDER
from lightning_sagemaker.recipes._common.unigram import train_tokenizer
from lightning_sagemaker.recipes.albert_mlm.jobs import RECORDS, SPLITS, ShardJob, run_jobs, split_of
from lightning_sagemaker.recipes.albert_mlm.text import TextSource, TextSourceError
from lightning_sagemaker.recipes.albert_mlm.tokenizer import (
    TRAIN,
    load_tokenizer,
)

_FORMAT = 3
"""Raised whenever the same settings would give other shards."""

_SHARD_CHARACTERS = (1_000_000, 8_000_000)
"""Least and most text of one shard: a 64th of the text, so that several processes have something to do, but not so much
that it would fill the memory."""

_STARTED = ".started.json"
"""In the folder of an interrupted run: its settings."""

_TOKENIZER_CHARACTERS = 20_000_000
"""A tokenizer learns from at most so many characters; more would not change it much but would fill the memory."""

Progress = Callable[[int], None]
"""Called with the number of characters that were done."""


@dataclass(frozen=True)
class Preparation(_preparation.Preparation):
    """Everything that decides what the shards hold.

    Args:
        source: Of the articles.
        tokenizer: ``train``, or what :func:`load_tokenizer` takes.
        vocab_size: Of a trained tokenizer.
        lowercase: Of a trained tokenizer.
        sequence_length: Tokens per sequence.
        sentence_order: Whether sequences have two segments, for sentence-order prediction.
        val_fraction: Share of articles for validation.
        test_fraction: Share of articles for testing.
        max_documents: Read no more articles than this.

    """

    source: TextSource
    tokenizer: str = TRAIN
    vocab_size: int = 30000
    lowercase: bool = True
    sequence_length: int = 128
    sentence_order: bool = False
    val_fraction: float = 0.05
    test_fraction: float = 0.01
    max_documents: int | None = None

    def settings(self) -> dict[str, Any]:
        """As plain containers, the text and tokenizer by their fingerprints."""
        trained = self.tokenizer == TRAIN
        return {
            "format": _FORMAT,
            "text": self.source.fingerprint(),
            "tokenizer": [self.vocab_size, self.lowercase] if trained else pretrained_fingerprint(self.tokenizer),
            "sequence_length": self.sequence_length,
            "sentence_order": self.sentence_order,
            "fractions": [self.val_fraction, self.test_fraction],
            "max_documents": self.max_documents,
        }

    def build(self, folder: Path) -> dict[str, Any]:
        """Write tokenizer and shards in this process."""
        entries = self.fill(folder, workers=0)
        for record in folder.glob(RECORDS):
            record.unlink()
        return entries

    def run_in(self, folder: Path, workers: int, progress: Progress) -> tuple[dict[str, Any], bool]:
        """As :meth:`run`, but in ``folder`` itself, where an interrupted run goes on.

        Args:
            folder: Made if missing.
            workers: Processes.
            progress: Is told how much was done.

        Raises:
            TextSourceError: If the folder holds what was made from other settings.

        """
        settings = self.settings()
        manifest = read_manifest(folder, settings)
        if manifest is not None:
            return manifest, False
        self._check_folder(folder, settings)
        started = folder / _STARTED
        write_text(started, json.dumps(settings))
        manifest = complete_manifest(folder, settings, self.fill(folder, workers, progress))
        write_text(folder / MANIFEST, manifest_text(manifest))
        for leftover in (*folder.glob(RECORDS), started):
            leftover.unlink()
        return manifest, True

    def _check_folder(self, folder: Path, settings: Mapping[str, Any]) -> None:
        found = load_manifest(folder)
        if found is not None and (damaged := damages(folder, found)):
            raise TextSourceError(
                f"{folder} holds damaged shards: {'; '.join(damaged)}. HINT: give another folder, or delete that one."
            )
        started = folder / _STARTED
        if (folder / MANIFEST).exists() or (started.exists() and json.loads(started.read_text()) != settings):
            raise TextSourceError(
                f"{folder} holds shards of other text or settings. HINT: give another folder, or delete that one."
            )

    def fill(self, folder: Path, workers: int, progress: Progress = lambda _: None) -> dict[str, Any]:
        """Write tokenizer and shards into ``folder``; the manifest's entries."""
        if workers:
            # In a process of its own: what it imports is then no longer in memory.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                facts = pool.submit(self.make_tokenizer, folder).result()
        else:
            facts = self.make_tokenizer(folder)
        job = ShardJob(
            str(folder),
            self.sequence_length,
            self.sentence_order,
            self.val_fraction,
            self.test_fraction,
            facts["cls_sep"],
            tuple(facts["special_ids"]),
            facts["vocab_size"],
        )
        entries: dict[str, Any] = {}
        articles = 0
        for result in run_jobs(job, self._chunks(), workers):
            progress(result["characters"])
            articles += result["articles"]
            entries |= result["files"]
        self._check(articles, entries)
        return {
            "articles": articles,
            "counts": _counts(entries),
            "files": dict(sorted(entries.items())),
            **{name: facts[name] for name in ("vocab_size", "special_ids", "mask_id")},
            "sequence_length": self.sequence_length,
            "sentence_order": self.sentence_order,
        }

    def make_tokenizer(self, folder: Path) -> dict[str, Any]:
        """Train or load the tokenizer and save it in ``folder``; its size and the ids that preparing needs."""
        saved = folder / TOKENIZER_FOLDER
        if (saved / "tokenizer_config.json").is_file():  # of an interrupted run; written last
            tokenizer = load_tokenizer(str(saved))
        else:
            tokenizer = self._new_tokenizer()
            tokenizer.save_pretrained(str(saved))
        return {
            "cls_sep": (tokenizer.cls_token_id, tokenizer.sep_token_id),
            "special_ids": sorted(set(tokenizer.all_special_ids)),
            "mask_id": tokenizer.mask_token_id,
            "vocab_size": len(tokenizer),
        }

    def _new_tokenizer(self) -> Any:
        if self.tokenizer == TRAIN:
            return train_tokenizer(self._training_text(), self.vocab_size, self.lowercase)
        return load_tokenizer(self.tokenizer)

    def _documents(self) -> Iterator[str]:
        return itertools.islice(self.source.documents(), self.max_documents)

    def _chunks(self) -> Iterator[list[str]]:
        """The articles of each shard."""
        least, most = _SHARD_CHARACTERS
        size = min(most, max(least, self.source.size() // 64))
        chunk: list[str] = []
        characters = 0
        for document in self._documents():
            chunk.append(document)
            characters += len(document)
            if characters >= size:
                yield chunk
                chunk, characters = [], 0
        if chunk:
            yield chunk

    def _training_text(self) -> Iterator[str]:
        characters = 0
        for document in self._documents():
            if split_of(document, self.val_fraction, self.test_fraction) == "train":
                yield document
                characters += len(document)
                if characters > _TOKENIZER_CHARACTERS:
                    return

    def _check(self, articles: int, entries: Mapping[str, Any]) -> None:
        fractions = {"train": 1.0, "val": self.val_fraction, "test": self.test_fraction}
        present = {name.split("-")[0] for name in entries}
        empty = [split for split in SPLITS if fractions[split] and split not in present]
        if empty:
            raise TextSourceError(
                f"{articles} articles make no sequence of {self.sequence_length} tokens for: {', '.join(empty)}."
                " HINT: give more text, lower data.sequence_length, or change data.val_fraction and data.test_fraction"
                " (0 switches a split off)."
            )


def _counts(entries: Mapping[str, Any]) -> dict[str, int]:
    """Sequences of each split."""
    counts = dict.fromkeys(SPLITS, 0)
    for name, entry in entries.items():
        counts[name.split("-")[0]] += entry["rows"]
    return counts
