# SPDX-License-Identifier: Apache-2.0
"""Questions from SQuAD's JSON (v1.1 and v2.0), from flat records, or from a Hugging Face dataset."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning_sagemaker.recipes._common.encodings import decode
from lightning_sagemaker.recipes._common.tables import (
    DataError,
    find_files,
    is_file_name,
    read_files,
    read_hub,
    require_columns,
)

POLICIES = ("error", "skip", "search")
"""What to do with an answer that does not stand where its record says."""

_NAMED = 5
"""Ids named in a message."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Question:
    """One question.

    Args:
        id: Unlike that of any other.
        question: Its text.
        context: The text with the answer.
        answers: Right answers; none: there is no answer in the context.
        starts: Where each begins in the context, in characters.

    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()

    @property
    def misplaced(self) -> bool:
        """Whether an answer does not stand where it should."""
        places = zip(self.answers, self.starts, strict=True)
        return any(self.context[start : start + len(text)] != text or not text for text, start in places)


def read_questions(name: str, option: str, split: str, config: str | None = None) -> list[Question]:
    """All questions of a file, a folder, or a part of a Hugging Face dataset.

    Args:
        name: Of the source.
        option: What to call it in messages.
        split: Of a Hugging Face dataset.
        config: Of a Hugging Face dataset.

    Raises:
        DataError: If it cannot be read as questions.

    """
    if is_file_name(name):
        questions = [question for path in find_files(name, option) for question in _read_file(path)]
    else:
        found = read_hub(name, config, [split])
        if split not in found:
            raise DataError(f"the dataset {name!r} has no split {split!r}. HINT: set {option} to another source.")
        questions = list(_flat(found[split], name))
    if not questions:
        raise DataError(f"{option}={name!r} has no question. HINT: give a file in SQuAD's form.")
    _check_ids(questions, name)
    return questions


def _read_file(path: Path) -> Iterable[Question]:
    if path.suffix == ".json":
        try:
            content = json.loads(decode(path.read_bytes())[0])
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read as JSON ({error}). HINT: it must be UTF-8 JSON.") from error
        if isinstance(content, dict) and any("paragraphs" in entry for entry in content.get("data", [])):
            return list(_nested(content["data"], path))
    return list(_flat(read_files([path]), str(path)))


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
                    yield Question(str(qa["id"]), qa["question"], paragraph["context"], texts, starts)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not in SQuAD's form ({error!r} is missing or wrong). HINT: see README.md."
        ) from error


def _flat(records: Sequence[dict[str, Any]], name: str) -> Iterator[Question]:
    if records:
        require_columns(records, ("id", "question", "context"), name)
    for record in records:
        answers = record.get("answers") or {"text": [], "answer_start": []}
        if isinstance(answers, list):
            answers = {key: [answer[key] for answer in answers] for key in ("text", "answer_start")}
        try:
            texts, starts = tuple(answers["text"]), tuple(int(start) for start in answers["answer_start"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{name}: the answers of question {record['id']!r} are {answers!r}."
                ' HINT: they must be {"text": [...], "answer_start": [...]}.'
            ) from error
        yield Question(str(record["id"]), str(record["question"]), str(record["context"]), texts, starts)


def _check_ids(questions: Sequence[Question], name: str) -> None:
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise DataError(f"{name} has two questions with the id {question.id!r}. HINT: give each its own.")
        seen.add(question.id)


def place_answers(questions: Sequence[Question], policy: str, what: str) -> list[Question]:
    """Questions whose answers all stand where they should.

    Args:
        questions: As read.
        policy: One of :data:`POLICIES`: refuse misplaced answers, leave their questions out, or look for the text in
            the context and leave out what is not found.
        what: To call the data in messages.

    Raises:
        DataError: If an answer is misplaced and the policy is ``error``.

    """
    wrong = [question.id for question in questions if question.misplaced]
    if not wrong:
        return list(questions)
    named = f"{len(wrong)} questions of {what} whose answer is not where answer_start says: {', '.join(wrong[:_NAMED])}"
    if policy == "error":
        raise DataError(
            f"there are {named}{', ...' if len(wrong) > _NAMED else ''}."
            " HINT: correct them, or set data.misplaced_answers=skip (leave them out) or search (look for the text)."
        )
    placed = [_search(question) if policy == "search" else question for question in questions]
    kept = [question for question in placed if not question.misplaced]
    _log.info("%s; %d were left out", named, len(questions) - len(kept))
    return kept


def _search(question: Question) -> Question:
    places = zip(question.answers, question.starts, strict=True)
    starts = tuple(
        start if question.context[start : start + len(text)] == text else question.context.find(text)
        for text, start in places
    )
    return replace(question, starts=starts)
