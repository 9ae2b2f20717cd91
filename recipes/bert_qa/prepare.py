# SPDX-License-Identifier: Apache-2.0
"""Reads and tokenizes questions and contexts into a cache."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lightning_sagemaker.checkpoint.export import save_tokenizer
from lightning_sagemaker.recipes._common.data import preparation as _preparation
from lightning_sagemaker.recipes._common.data.checksums import file_entry
from lightning_sagemaker.recipes._common.data.preparation import TOKENIZER_FOLDER, table_settings
from lightning_sagemaker.recipes._common.data.ragged import Integers, RaggedWriter, save_ragged
from lightning_sagemaker.recipes._common.data.record_lines import records_name, write_record_lines
from lightning_sagemaker.recipes._common.data.sources import option_of
from lightning_sagemaker.recipes._common.data.table_streams import TableForm
from lightning_sagemaker.recipes._common.data.tables import DataError
from lightning_sagemaker.recipes._common.data.wordpiece import train_wordpiece
from lightning_sagemaker.recipes._common.modules.pretrained import load_tokenizer
from lightning_sagemaker.recipes.bert_qa.facts import fact_articles
from lightning_sagemaker.recipes.bert_qa.question import Question
from lightning_sagemaker.recipes.bert_qa.squad import nested_questions, place_answers, read_questions

BUILTIN = "facts"

_FORMAT = 9
"""Version of the cache, incremented whenever the same settings would give another."""

_BUILTIN_ARTICLES = {"train": 4000, "val": 150}
_HUB_SPLITS = {"train": "train", "val": "validation", "test": "test", "predict": "test"}
_BATCH = 1000

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Preparation(_preparation.Preparation):
    """All settings that determine the content of the cache.

    Each context and question is tokenized once, however many questions a context has and windows it is cut into.

    Args:
        files: Split (train, val, test, predict) -> file, folder, hub name or ``facts``.
        dataset_config: Configuration of a hub dataset.
        pretrained: Folder or hub name of the tokenizer; ``None``: one is trained.
        vocab_size: Vocabulary size of a trained tokenizer.
        max_query_length: Maximum tokens of a question; the rest is cut off.
        misplaced_answers: One of :data:`~squad.POLICIES`.
        unanswerable: Whether questions without an answer are kept for training.
        limits: Split -> maximum number of questions.
        delimiter: Delimiter of the columns of text tables; ``None``: detected.
        encoding: Encoding of text tables; ``None``: detected.

    """

    files: Mapping[str, str]
    dataset_config: str | None = None
    pretrained: str | None = None
    vocab_size: int = 8000
    max_query_length: int = 64
    misplaced_answers: str = "error"
    unanswerable: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)
    delimiter: str | None = None
    encoding: str | None = None

    def settings(self) -> dict[str, Any]:
        """The settings as plain containers, with fingerprints of files and tokenizer."""
        return table_settings(self, _FORMAT, {BUILTIN: _BUILTIN_ARTICLES})

    def build(self, folder: Path) -> dict[str, Any]:
        """Read, tokenize, and write."""
        splits, read = self._read(folder)
        tokenizer = self._tokenizer(splits)
        save_tokenizer(tokenizer, folder / TOKENIZER_FOLDER)
        paths = [path for split, part in splits.items() for path in _save(folder, split, part, tokenizer, self)]
        return {
            "files": {path.name: file_entry(path) for path in paths},
            "counts": {split: len(questions) for split, questions in splits.items()},
            "read": read,
            "vocab_size": len(tokenizer),
        }

    def _read(self, folder: Path) -> tuple[dict[str, list[Question]], list[str]]:
        """Split -> questions, and how each file was read."""
        form = TableForm(self.delimiter, self.encoding)
        splits: dict[str, list[Question]] = {}
        read: list[str] = []
        for split, name in self.files.items():
            if name == BUILTIN:
                splits |= {
                    part: nested_questions(fact_articles(count, part)) for part, count in _BUILTIN_ARTICLES.items()
                }
            else:
                option, part = option_of(split), _HUB_SPLITS[split]
                splits[split], how = read_questions(name, option, part, self.dataset_config, form, folder)
                read += [f"{split}: {line}" for line in how]
        for split, questions in splits.items():
            placed = place_answers(questions, self.misplaced_answers, f"the {split} data")
            if split == "train":
                placed = self._for_training(placed)
            splits[split] = placed[: self.limits.get(split)]
        _report_overlaps(splits)
        return splits, read

    def _for_training(self, questions: list[Question]) -> list[Question]:
        if self.unanswerable:
            return questions
        answerable = [question for question in questions if question.answers]
        if not answerable:
            raise DataError(
                "no training question has an answer. HINT: check data.train; for questions without answers set"
                " data.version_2_with_negative=true."
            )
        if len(answerable) < len(questions):
            _log.info(
                "%d of %d training questions have no answer and are dropped; set data.version_2_with_negative=true to "
                "keep them",
                len(questions) - len(answerable),
                len(questions),
            )
        return answerable

    def _tokenizer(self, splits: Mapping[str, Sequence[Question]]) -> Any:
        if self.pretrained is not None:
            return load_tokenizer(self.pretrained)
        if "train" not in splits:
            raise DataError(
                "there is neither training data to train a tokenizer on, nor a model that comes with one."
                " HINT: set data.train or model.pretrained."
            )
        contexts = dict.fromkeys(question.context for question in splits["train"])
        return train_wordpiece(
            [*contexts, *(question.question for question in splits["train"])],
            self.vocab_size,
        )


def _report_overlaps(splits: Mapping[str, Sequence[Question]]) -> None:
    """Warn of questions to evaluate that are trained on, too."""
    trained = {(question.question, question.context) for question in splits.get("train", ())}
    for split, questions in splits.items() if trained else ():
        if split in ("train", "predict"):
            continue
        if count := sum((question.question, question.context) in trained for question in questions):
            _log.warning(
                "%s: %d of %d questions are also in the training data, with the same context: its scores are too high",
                split,
                count,
                len(questions),
            )


def _save(folder: Path, split: str, questions: Sequence[Question], tokenizer: Any, settings: Preparation) -> list[Path]:
    contexts = {text: number for number, text in enumerate(dict.fromkeys(q.context for q in questions))}
    examples, texts = folder / f"{split}-questions.npy", folder / f"{split}-texts.json"
    paths, rows = _save_contexts(folder, split, questions, contexts, tokenizer)
    np.save(examples, rows)
    asked = (part for batch in _tokenized(tokenizer, [q.question.strip() for q in questions]) for part, _ in batch)
    records = [{"id": q.id, "answers": q.answers} for q in questions]
    texts.write_text(json.dumps({"contexts": list(contexts), "questions": records}), encoding="utf-8")
    if split != "train":
        write_record_lines(folder / records_name(split), (q.record for q in questions))
    return [
        *paths,
        *save_ragged(folder, f"{split}-question-tokens", (part[: settings.max_query_length] for part in asked)),
        examples,
        texts,
    ]


def _save_contexts(
    folder: Path, split: str, questions: Sequence[Question], contexts: Mapping[str, int], tokenizer: Any
) -> tuple[list[Path], Integers]:
    """Write the contexts' tokens and offsets; returns the files, and ``[questions, 3]``: see :func:`_place`."""
    tokens, offsets = (RaggedWriter(folder, f"{split}-context-{kind}") for kind in ("tokens", "offsets"))
    numbers = np.fromiter((contexts[question.context] for question in questions), np.int64, len(questions))
    rows = np.full((len(questions), 3), -1, dtype=np.int64)
    ordered = np.argsort(numbers, kind="stable")  # the questions by context
    begins = np.searchsorted(numbers[ordered], np.arange(len(contexts) + 1))
    number = 0
    for batch in _tokenized(tokenizer, list(contexts)):
        for ids, places in batch:
            tokens.append(ids)
            offsets.append(places.reshape(-1))
            for asked in ordered[begins[number] : begins[number + 1]]:
                rows[asked] = number, *_place(questions[asked], places)
            number += 1
    return [*tokens.finish(), *offsets.finish()], rows


def _tokenized(tokenizer: Any, texts: Sequence[str]) -> Iterator[list[tuple[list[int], Integers]]]:
    """Token ids, and offsets ``[tokens, 2]`` in characters, of each text, some texts at once; without special tokens."""
    options = {"add_special_tokens": False, "return_offsets_mapping": True, "return_attention_mask": False}
    for begin in range(0, len(texts), _BATCH):
        encoded = tokenizer(list(texts[begin : begin + _BATCH]), verbose=False, **options)
        offsets = (np.array(part, dtype=np.int64).reshape(-1, 2) for part in encoded["offset_mapping"])
        yield list(zip(encoded["input_ids"], offsets, strict=True))


def _place(question: Question, places: Integers) -> tuple[int, int]:
    """First and last token of the first answer; -1 without one.

    Args:
        question: The question.
        places: Begin and end of its context's tokens, ``[tokens, 2]``, in characters.

    """
    if not question.answers:
        return -1, -1
    begin = question.starts[0]
    end = begin + len(question.answers[0])
    first = int(np.searchsorted(places[:, 1], begin, side="right"))
    last = int(np.searchsorted(places[:, 0], end, side="left")) - 1
    if first > last or first >= len(places):
        return -1, -1  # the tokenizer drops those characters
    return first, last
