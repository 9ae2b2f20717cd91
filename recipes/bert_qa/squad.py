# SPDX-License-Identifier: Apache-2.0
"""Questions from SQuAD's JSON (v1.1 and v2.0), from tables, or from a Hugging Face dataset."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_sagemaker.recipes._common.data.encodings import decode
from lightning_sagemaker.recipes._common.data.table_sources import local_files
from lightning_sagemaker.recipes._common.data.table_streams import TableForm
from lightning_sagemaker.recipes._common.data.tables import (
    DataError,
    is_file_name,
    read_hub,
    read_tables,
    require_split,
)
from lightning_sagemaker.recipes._common.data.unpacked import open_unpacked
from lightning_sagemaker.recipes.bert_qa.question import Question
from lightning_sagemaker.recipes.bert_qa.question_tables import table_questions

POLICIES = ("error", "skip", "search")
"""What to do with an answer that is not at its ``answer_start``."""

_NAMED = 5
"""Maximum number of ids in a message."""

_log = logging.getLogger(__name__)


def read_questions(
    name: str,
    option: str,
    split: str,
    config: str | None = None,
    form: TableForm | None = None,
    folder: Path | None = None,
) -> tuple[list[Question], list[str]]:
    """All questions of a file, a folder, or a split of a Hugging Face dataset, and how each file was read.

    Args:
        name: Name of the source.
        option: Name of the option, for messages.
        split: Split of a Hugging Face dataset.
        config: Configuration of a Hugging Face dataset.
        form: Format of text tables.
        folder: Folder for temporary files. ``None``: the system's.

    Raises:
        DataError: If the source cannot be read, has no question, or has an id twice.

    """
    questions: list[Question] = []
    read: list[str] = []
    if is_file_name(name):
        with local_files(name, option, folder) as files:
            for path in files.paths:
                found, how = _read_file(path, form, len(questions), folder)
                questions += found
                read.append(files.named(how))
    else:
        questions = table_questions(require_split(read_hub(name, config, [split], folder), split, name, option), name)
    if not questions:
        raise DataError(f"{option}={name!r} has no question. HINT: give a file in SQuAD's format.")
    _check_ids(questions, name)
    return questions, read


def _read_file(path: Path, form: TableForm | None, first: int, folder: Path | None) -> tuple[list[Question], str]:
    articles = _articles(path)
    if articles is not None:
        return list(_nested(articles, path)), f"{path}: SQuAD's JSON"
    records, [how] = read_tables([path], form, folder)
    return table_questions(records, str(path), first), how


def _articles(path: Path) -> list[Any] | None:
    """The articles of a file in SQuAD's JSON form; ``None`` for another form."""
    try:
        with open_unpacked(path) as (name, file):
            if not name.lower().endswith(".json"):
                return None
            text, _ = decode(file.read())
    except (OSError, ValueError, ModuleNotFoundError):
        return None  # reading it as a table says why
    try:
        content = json.loads(text)
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError) and error.msg.startswith("Extra data"):
            return None  # an object in each line, in spite of the name
        raise DataError(f"{path} cannot be read as JSON ({error}). HINT: check the file's contents.") from error
    data = content.get("data") if isinstance(content, dict) else None
    is_nested = isinstance(data, list) and any(isinstance(entry, dict) and "paragraphs" in entry for entry in data)
    return data if is_nested else None


def nested_questions(articles: Sequence[Any]) -> list[Question]:
    """The questions of SQuAD's ``data``."""
    return list(_nested(articles, "the articles"))


def _nested(articles: Sequence[Any], path: Any) -> Iterator[Question]:
    try:
        for article in articles:
            for paragraph in article["paragraphs"]:
                for qa in paragraph["qas"]:
                    answers = qa.get("answers", [])
                    texts = tuple(answer["text"] for answer in answers)
                    starts = tuple(int(answer["answer_start"]) for answer in answers)
                    record = {"id": qa["id"], "question": qa["question"], "context": paragraph["context"]}
                    yield Question(str(qa["id"]), qa["question"], paragraph["context"], texts, starts, record)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not in SQuAD's format ({error!r} is missing or wrong). HINT: see README.md."
        ) from error


def _check_ids(questions: Sequence[Question], name: str) -> None:
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise DataError(f"{name} has two questions with the id {question.id!r}. HINT: give each a unique id.")
        seen.add(question.id)


def place_answers(questions: Sequence[Question], policy: str, what: str) -> list[Question]:
    """The questions whose answers are all at their starts in the context.

    Args:
        questions: Questions as read.
        policy: One of :data:`POLICIES`: refuse misplaced answers, leave their questions out, or search the text in the
            context and leave out questions whose answer is not found.
        what: Name of the data, for messages.

    Raises:
        DataError: If an answer is misplaced and the policy is ``error``.

    """
    wrong = [question.id for question in questions if question.misplaced]
    if not wrong:
        return list(questions)
    named = f"{len(wrong)} questions of {what} whose answer is not at answer_start: {', '.join(wrong[:_NAMED])}"
    if policy == "error":
        raise DataError(
            f"there are {named}{', ...' if len(wrong) > _NAMED else ''}."
            " HINT: correct them, or set data.misplaced_answers=skip (leave them out) or search (look for the text)."
        )
    placed = [_search(question) if policy == "search" else question for question in questions]
    kept = [question for question in placed if not question.misplaced]
    _log.info("%s; %d were dropped", named, len(questions) - len(kept))
    return kept


def _search(question: Question) -> Question:
    places = zip(question.answers, question.starts, strict=True)
    starts = tuple(
        start if question.context[start : start + len(text)] == text else question.context.find(text)
        for text, start in places
    )
    return replace(question, starts=starts)
