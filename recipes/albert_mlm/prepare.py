# SPDX-License-Identifier: Apache-2.0
"""Tokenises the text into a cache of shards."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_sagemaker.recipes._common.cache import build_once, settings_key
from lightning_sagemaker.recipes.albert_mlm.packing import Packer
from lightning_sagemaker.recipes.albert_mlm.shards import ShardWriter
from lightning_sagemaker.recipes.albert_mlm.text import TextSource, TextSourceError
from lightning_sagemaker.recipes.albert_mlm.tokenizer import (
    TRAIN,
    load_tokenizer,
    tokenizer_fingerprint,
    train_tokenizer,
)

TOKENIZER_FOLDER = "tokenizer"
SPLITS = ("train", "val", "test")

_FORMAT = 1
"""Raised whenever the same settings would give other shards."""

_BATCH = 1000
"""Articles tokenised at once."""

_TOKENIZER_CHARACTERS = 100_000_000
"""A tokenizer learns from at most so many characters; more would not change it much but would fill the memory."""


@dataclass(frozen=True)
class Preparation:
    """Everything that decides what the shards hold.

    Args:
        source: Of the articles.
        tokenizer: ``train``, or what :func:`load_tokenizer` takes.
        vocab_size: Of a trained tokenizer.
        lowercase: Of a trained tokenizer.
        sequence_length: Tokens per sequence.
        val_fraction: Share of articles for validation.
        test_fraction: Share of articles for testing.
        max_documents: Read no more articles than this.

    """

    source: TextSource
    tokenizer: str
    vocab_size: int
    lowercase: bool
    sequence_length: int
    val_fraction: float
    test_fraction: float
    max_documents: int | None

    def settings(self) -> dict[str, Any]:
        """As plain containers, the text and tokenizer by their fingerprints."""
        trained = self.tokenizer == TRAIN
        return {
            "format": _FORMAT,
            "text": self.source.fingerprint(),
            "tokenizer": [self.vocab_size, self.lowercase] if trained else tokenizer_fingerprint(self.tokenizer),
            "sequence_length": self.sequence_length,
            "fractions": [self.val_fraction, self.test_fraction],
            "max_documents": self.max_documents,
        }

    def folder(self, cache: Path) -> Path:
        """Where the shards are under ``cache``."""
        return cache / settings_key(self.settings())

    def run(self, cache: Path) -> tuple[dict[str, Any], bool]:
        """Make the shards unless they are there; the manifest, and whether they were made now."""
        # Saying it explicitly also keeps the library from warning about the data loader's workers.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        return build_once(self.folder(cache), self.settings(), self._build)

    def _documents(self) -> Iterator[str]:
        return itertools.islice(self.source.documents(), self.max_documents)

    def _build(self, folder: Path) -> dict[str, Any]:
        if self.tokenizer == TRAIN:
            tokenizer: Any = train_tokenizer(self._training_text(), self.vocab_size, self.lowercase)
        else:
            tokenizer = load_tokenizer(self.tokenizer)
        tokenizer.save_pretrained(str(folder / TOKENIZER_FOLDER))
        special = frozenset(tokenizer.all_special_ids)
        writers = {split: ShardWriter(folder, split, len(tokenizer)) for split in SPLITS}
        packers = {
            split: Packer(self.sequence_length, tokenizer.cls_token_id, tokenizer.sep_token_id, special)
            for split in SPLITS
        }
        articles = 0
        for batch in _batched(self._documents(), _BATCH):
            articles += len(batch)
            ids = tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
            for document, tokens in zip(batch, ids, strict=True):
                split = self._split(document)
                for sequence in packers[split].add(tokens):
                    writers[split].add(sequence)
        for writer in writers.values():
            writer.flush()
        self._check(articles, writers)
        return {
            "articles": articles,
            "files": {name: entry for writer in writers.values() for name, entry in writer.files.items()},
            "vocab_size": len(tokenizer),
            "special_ids": sorted(special),
            "mask_id": tokenizer.mask_token_id,
        }

    def _training_text(self) -> Iterator[str]:
        characters = 0
        for document in self._documents():
            if self._split(document) == "train":
                yield document
                characters += len(document)
                if characters > _TOKENIZER_CHARACTERS:
                    return

    def _split(self, document: str) -> str:
        """By the article's text, so neither its place in the files nor other articles matter."""
        place = int.from_bytes(hashlib.blake2b(document.encode(), digest_size=8).digest(), "big") / (1 << 64)
        if place < self.val_fraction:
            return "val"
        return "test" if place < self.val_fraction + self.test_fraction else "train"

    def _check(self, articles: int, writers: dict[str, ShardWriter]) -> None:
        fractions = {"train": 1.0, "val": self.val_fraction, "test": self.test_fraction}
        empty = [split for split in SPLITS if fractions[split] and not writers[split].files]
        if empty:
            raise TextSourceError(
                f"{articles} articles make no sequence of {self.sequence_length} tokens for: {', '.join(empty)}."
                " HINT: give more text, lower data.sequence_length, or change data.val_fraction and data.test_fraction"
                " (0 switches a split off)."
            )


def _batched(items: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch
