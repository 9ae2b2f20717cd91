# SPDX-License-Identifier: Apache-2.0
"""Tokenizes the text into a cache of shards; imports neither torch nor transformers, as many processes import it."""

from __future__ import annotations

import itertools
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lightning_sagemaker.checkpoint.export import save_tokenizer
from lightning_sagemaker.data.block_index import INDEX, index_shards, index_text
from lightning_sagemaker.data.parent import end_with_parent
from lightning_sagemaker.recipes._common.data import preparation as _preparation
from lightning_sagemaker.recipes._common.data.cache import (
    MANIFEST,
    complete_manifest,
    load_manifest,
    manifest_text,
    read_manifest,
    settings_key,
)
from lightning_sagemaker.recipes._common.data.checksums import file_entry
from lightning_sagemaker.recipes._common.data.fingerprints import pretrained_fingerprint
from lightning_sagemaker.recipes._common.data.preparation import TOKENIZER_FOLDER
from lightning_sagemaker.recipes._common.data.remote import columns_of
from lightning_sagemaker.recipes._common.data.unigram import train_tokenizer
from lightning_sagemaker.recipes.albert_mlm.articles import TextSourceError
from lightning_sagemaker.recipes.albert_mlm.jobs import (
    SPLITS,
    Chunk,
    ShardJob,
    by_characters,
    find_short_splits,
    finished_files,
    run_jobs,
    split_of,
)
from lightning_sagemaker.recipes.albert_mlm.resuming import STARTED, keep_complete, other_files, remove_leftovers
from lightning_sagemaker.recipes.albert_mlm.shards import SEGMENTS
from lightning_sagemaker.recipes.albert_mlm.text import TextSource
from lightning_sagemaker.recipes.albert_mlm.tokenizer import (
    TRAIN,
    load_tokenizer,
)
from lightning_sagemaker.text_files import write_text

_FORMAT = 3
"""Version of the cache, incremented whenever the same settings would give other shards."""

_SHARD_CHARACTERS = (1_000_000, 8_000_000)
"""Minimum and maximum characters of one shard: a 64th of the text, so that several processes have work, but not so much
that it would fill the memory."""

_TOKENIZER_CHARACTERS = 20_000_000
"""Maximum characters that a tokenizer is trained on; more would change it little but would fill the memory."""

_log = logging.getLogger(__name__)

Progress = Callable[[int], None]
"""Called with the number of characters that were done."""


@dataclass(frozen=True)
class Preparation(_preparation.Preparation):
    """All settings that determine the content of the shards.

    Args:
        source: Source of the articles.
        tokenizer: ``train``, or a name for :func:`load_tokenizer`.
        vocab_size: Vocabulary size of a trained tokenizer.
        lowercase: Whether a trained tokenizer lowercases.
        sequence_length: Tokens per sequence.
        sentence_order: Whether sequences have two segments, for sentence-order prediction.
        val_fraction: Share of articles for validation.
        test_fraction: Share of articles for testing.
        max_documents: Read no more articles of the source than this.
        validation: Source of articles for validation; ``None``: a share of the source's.
        test: Source of articles for testing; ``None``: a share of the source's.

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
    validation: TextSource | None = None
    test: TextSource | None = None

    @property
    def own(self) -> dict[str, TextSource]:
        """Split -> source of its own, for those that have one."""
        given = {"val": self.validation, "test": self.test}
        return {split: source for split, source in given.items() if source is not None}

    @property
    def fractions(self) -> dict[str, float]:
        """Split -> share of the source's articles, 0 with a source of its own."""
        shares = {"val": self.val_fraction, "test": self.test_fraction}
        return {split: 0.0 if split in self.own else share for split, share in shares.items()}

    def size(self) -> int:
        """Bytes of all text; 0 if unknown."""
        sizes = [source.size() for source in (self.source, *self.own.values())]
        return sum(sizes) if all(sizes) else 0

    def settings(self) -> dict[str, Any]:
        """The settings as plain containers, with fingerprints of text and tokenizer."""
        trained = self.tokenizer == TRAIN
        return {
            "format": _FORMAT,
            "text": self.source.fingerprint(),
            "tokenizer": [self.vocab_size, self.lowercase] if trained else pretrained_fingerprint(self.tokenizer),
            "sequence_length": self.sequence_length,
            "sentence_order": self.sentence_order,
            "fractions": list(self.fractions.values()),
            "max_documents": self.max_documents,
            **{split: source.fingerprint() for split, source in self.own.items()},
        }

    def build(self, folder: Path) -> dict[str, Any]:
        """Write tokenizer and shards in this process."""
        entries = self.fill(folder, workers=0)
        remove_leftovers(folder)
        return entries

    def run_in(self, folder: Path, workers: int, progress: Progress) -> tuple[dict[str, Any], bool]:
        """As :meth:`run`, but in ``folder`` itself, where an interrupted run resumes, and missing files are rebuilt.

        Args:
            folder: Folder to write to.
            workers: Number of worker processes; 0: this process.
            progress: Called with the number of characters of each finished shard.

        Raises:
            TextSourceError: If the folder has shards of other text or settings, or a split has too little text.

        """
        settings = self.settings()
        manifest = read_manifest(folder, settings)
        if manifest is not None:
            remove_leftovers(folder)
            return with_index(folder, manifest), False
        self._reopen(folder, settings)
        write_text(folder / STARTED, json.dumps(settings))
        manifest = complete_manifest(folder, settings, self.fill(folder, workers, progress))
        write_text(folder / MANIFEST, manifest_text(manifest))
        remove_leftovers(folder)
        return manifest, True

    def _reopen(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Prepare to rebuild missing or damaged files; refuse a folder built from other inputs."""
        found = load_manifest(folder)
        if found is not None and found["key"] == settings_key(settings):
            kept, total = keep_complete(folder, found)
            _log.info("%s: %d of %d shards are complete and kept", folder, kept, total)
            return
        started = folder / STARTED
        others = started.exists() and json.loads(started.read_text()) != settings
        if (folder / MANIFEST).exists() or (others and finished_files(folder)):
            what = (
                "a damaged manifest" if found is None and not started.exists() else "shards of other text or settings"
            )
            raise TextSourceError(f"{folder} contains {what}. HINT: give another folder, or delete this one.")
        if others:  # of a run that was refused, or ended, before its first shard
            shutil.rmtree(folder / TOKENIZER_FOLDER, ignore_errors=True)
            remove_leftovers(folder)
            return
        # The tokenizer would be replaced, or taken for one of an interrupted run.
        if not started.exists() and (other := next(other_files(folder), None)):
            raise TextSourceError(
                f"{folder} contains {other}, which is no prepared text. HINT: give a new folder, or an empty one."
            )

    def fill(self, folder: Path, workers: int, progress: Progress = lambda _: None) -> dict[str, Any]:
        """Write tokenizer and shards into ``folder``; returns the manifest's entries."""
        if workers:
            # In a process of its own, so that its imports do not stay in memory.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=end_with_parent) as pool:
                facts = pool.submit(self.make_tokenizer, folder).result()
        else:
            facts = self.make_tokenizer(folder)
        job = ShardJob(
            str(folder),
            self.sequence_length,
            self.sentence_order,
            self.fractions["val"],
            self.fractions["test"],
            facts["cls_sep"],
            tuple(facts["special_ids"]),
            facts["vocab_size"],
        )
        self._check_length(job, folder)
        entries: dict[str, Any] = {}
        articles = 0
        for result in run_jobs(job, self._chunks(folder / TOKENIZER_FOLDER), workers):
            progress(result["characters"])
            articles += result["articles"]
            entries |= result["files"]
        columns = columns_of(entries, SEGMENTS)
        write_text(folder / INDEX, index_text(index_shards(folder, columns)))
        return {
            "articles": articles,
            "counts": _counts(entries),
            "files": dict(sorted(entries.items())),
            **{name: facts[name] for name in ("vocab_size", "special_ids", "mask_id")},
            "sequence_length": self.sequence_length,
            "sentence_order": self.sentence_order,
        }

    def make_tokenizer(self, folder: Path) -> dict[str, Any]:
        """Train or load the tokenizer and save it in ``folder``; returns its size and its special ids."""
        saved = folder / TOKENIZER_FOLDER
        if (saved / "tokenizer_config.json").is_file():  # of an interrupted run; written last
            tokenizer = load_tokenizer(str(saved))
        else:
            tokenizer = self._new_tokenizer()
            _save_whole(tokenizer, saved)
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

    def _documents(self, tokenizer: Path | None = None) -> Iterator[str]:
        return itertools.islice(self.source.documents(tokenizer), self.max_documents)

    def _chunks(self, tokenizer: Path) -> Iterator[Chunk]:
        """The articles of each shard."""
        for documents in _chunked(self._documents(tokenizer), self.source.characters()):
            yield None, documents
        for split, source in self.own.items():
            for documents in _chunked(source.documents(tokenizer), source.characters()):
                yield split, documents

    def _training_text(self) -> Iterator[str]:
        characters = 0
        for document in self._documents():
            if split_of(document, *self.fractions.values()) == "train":
                yield document
                characters += len(document)
                if characters > _TOKENIZER_CHARACTERS:
                    return

    def _check_length(self, job: ShardJob, folder: Path) -> None:
        """Check that no split would be without a sequence, before any shard is written."""
        wanted = [split for split in SPLITS if split == "train" or split in self.own or self.fractions[split]]
        short = find_short_splits(job, self._chunks(folder / TOKENIZER_FOLDER), wanted)
        if not short:
            return
        split, articles = next(iter(short.items()))
        option = {"val": "data.validation", "test": "data.test"}.get(split, "data.text")
        share = f"data.{split}_fraction"
        if split == "train" or split in self.own:
            source = self.own.get(split, self.source)
            what = f"{option} ({source.describe()}) has {articles} articles" + (
                " for training" if split == "train" else ""
            )
            remedy = "give it more text"
        else:
            what = f"{share}={self.fractions[split]:g} of {self.source.describe()} is {articles} articles"
            remedy = f"give more text, raise {share} (0 leaves the split out), set {option} to separate text"
        raise TextSourceError(
            f"{what}, too short for a sequence of data.sequence_length={self.sequence_length} tokens."
            f" HINT: {remedy}, or lower data.sequence_length."
        )


def _save_whole(tokenizer: Any, folder: Path) -> None:
    part = folder.with_name(f".{folder.name}.part")
    for path in (part, folder):  # of an interrupted run
        shutil.rmtree(path, ignore_errors=True)
    save_tokenizer(tokenizer, part)
    part.rename(folder)


def with_index(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a folder, after adding the index of blocks if an older version made it without one."""
    if INDEX in manifest["others"]:
        return manifest
    write_text(folder / INDEX, index_text(index_shards(folder, columns_of(manifest["files"], SEGMENTS))))
    manifest = manifest | {"others": {**manifest["others"], INDEX: file_entry(folder / INDEX)}}
    write_text(folder / MANIFEST, manifest_text(manifest))
    return manifest


def _chunked(documents: Iterable[str], total: int) -> Iterator[list[str]]:
    """The articles of each shard of a text of about ``total`` characters."""
    least, most = _SHARD_CHARACTERS
    return by_characters(documents, min(most, max(least, total // 64)))


def _counts(entries: Mapping[str, Any]) -> dict[str, int]:
    """Number of sequences of each split."""
    counts = dict.fromkeys(SPLITS, 0)
    for name, entry in entries.items():
        counts[name.split("-")[0]] += entry["rows"]
    return counts
