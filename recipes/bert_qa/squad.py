# SPDX-License-Identifier: Apache-2.0
"""Questions from SQuAD's JSON (v1.1 and v2.0), from tables, or from a Hugging Face dataset."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_sagemaker.recipes._common.data.encodings import decode
from lightning_sagemaker.recipes._common.data.json_records import stream_json_lines
from lightning_sagemaker.recipes._common.data.table_sources import local_files
from lightning_sagemaker.recipes._common.data.table_streams import START, TableForm, buffered, check_kind, encoding_of
from lightning_sagemaker.recipes._common.data.tables import (
    DataError,
    NoRecordsError,
    choose_records,
    is_file_name,
    read_hub,
    read_tables,
    require_split,
)
from lightning_sagemaker.recipes._common.data.unpacked import open_unpacked
from lightning_sagemaker.recipes._common.data.workbooks import sound_json
from lightning_sagemaker.recipes.bert_qa.question import Question
from lightning_sagemaker.recipes.bert_qa.question_tables import (
    check_answers,
    identifier_of,
    read_answers,
    table_questions,
)

POLICIES = ("error", "skip", "search")
"""What to do with an answer that is not at its ``answer_start``."""

_NESTED = ("paragraphs", "qas")
"""Keys of the articles and of the paragraphs of SQuAD's JSON."""
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
                try:
                    found, how = _read_file(path, form, len(questions), option, folder)
                except NoRecordsError:  # a part without records, as parallel programs write them
                    if len(files.paths) == 1:
                        raise
                    continue
                questions += found
                read.append(files.named(how))
    else:
        table = require_split(read_hub(name, config, [split], folder), split, name, option)
        questions = table_questions(table, name, 0, option)
    if not questions:
        raise DataError(f"{option}={name!r} has no question. HINT: give a file in SQuAD's format.")
    _check_ids(questions, name)
    return questions, read


def _read_file(
    path: Path, form: TableForm | None, first: int, option: str, folder: Path | None
) -> tuple[list[Question], str]:
    articles = _articles(path, form or TableForm())
    if articles is not None:
        return list(_nested(articles, path, option)), f"{path}: SQuAD's JSON"
    records, [how] = read_tables([path], form, folder)
    return table_questions(choose_records(records, str(path), option), str(path), first, option), how


def _articles(path: Path, form: TableForm) -> list[Any] | None:
    """The articles of a file in SQuAD's JSON form; ``None`` for another form."""
    try:
        with open_unpacked(path) as (name, file):
            stream = buffered(file)
            start = stream.peek(START)
            check_kind(start, "")
            begin = start.decode(form.encoding or encoding_of(start), "ignore").lstrip("\ufeff \t\r\n")
            is_nested = begin[:1] in ("{", "[") and any(f'"{key}"' in begin for key in _NESTED)
            if not is_nested and not name.lower().endswith(".json"):
                return None
            text, _ = decode(stream.read(), form.encoding)
            if not text.strip():
                return None
    except (OSError, ValueError, LookupError, ModuleNotFoundError):
        return None  # reading it as a table says why
    try:
        content = json.loads(sound_json(text))
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError) and error.msg.startswith("Extra data"):  # an object in each line
            return _articles_of(list(stream_json_lines(text.split("\n")))) if is_nested else None
        raise DataError(f"{path} cannot be read as JSON ({error}). HINT: check the file's contents.") from error
    return _articles_of(content)


def _articles_of(content: Any) -> list[Any] | None:
    """The articles of SQuAD's ``data``, of a list of articles or paragraphs, or of one of these."""
    data = content.get("data", [content]) if isinstance(content, dict) else content
    if isinstance(data, list):
        data = [one for one in data if not isinstance(one, dict) or one.keys() != {"header"}]  # MRQA's first line
    if not isinstance(data, list) or not any(
        isinstance(one, dict) and any(map(one.__contains__, _NESTED)) for one in data
    ):
        return None
    return [{"paragraphs": [one]} if isinstance(one, dict) and "qas" in one else one for one in data]


def nested_questions(articles: Sequence[Any]) -> list[Question]:
    """The questions of SQuAD's ``data``."""
    return list(_nested(articles, "the articles", "data.predict"))


def _nested(articles: Sequence[Any], path: Any, option: str) -> Iterator[Question]:
    names: dict[str, None] = {}
    try:
        for article in articles:
            for paragraph in article["paragraphs"]:
                for qa in paragraph["qas"]:
                    names.update(dict.fromkeys(qa))
                    identifier = found if (found := identifier_of(qa)) is not None else qa["id"]
                    where = f"{path}: the question {identifier!r}"
                    texts, starts = read_answers(qa, where)
                    for key, text in (("context", paragraph["context"]), ("question", qa["question"])):
                        if not isinstance(text, str) or not text.strip():
                            raise DataError(f"{where} has no {key}. HINT: give each a {key}, or delete it.")
                    record = {"id": identifier, "question": qa["question"], "context": paragraph["context"]}
                    yield Question(str(identifier), qa["question"], paragraph["context"], texts, starts, record)
    except DataError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{path} is not in SQuAD's format ({what}). HINT: articles have paragraphs, these a context and qas, and these"
            " an id, a question and answers."
        ) from error
    if names:
        check_answers(names, option, str(path))


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
            context, near its start, and leave out questions whose answer is not found.
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
    return replace(question, starts=tuple(_find(question.context, text, start) for text, start in places))


def _find(context: str, text: str, start: int) -> int:
    """The place of ``text`` in ``context`` that is nearest to ``start``; whole words, if there are some; -1 without any."""
    if start >= 0 and context[start : start + len(text)] == text:
        return start
    places = [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)]
    words = [match.start() for match in re.finditer(rf"(?<!\w)(?={re.escape(text)}(?!\w))", context)]
    if start < 0 and not words:  # then nothing else tells that `nan` is not in `finance`
        places = [place for place in places if not _is_within(context, place, place + len(text))]
    return min(words or places, key=lambda place: abs(place - start), default=-1)


def _is_within(context: str, begin: int, end: int) -> bool:
    """Whether a part of a text is inside a word or number, of a script that has spaces between words."""
    before, after = context[begin - 1 : begin], context[end : end + 1]
    is_in_number = context[end - 1].isdigit() and after.isdigit()
    return is_in_number or before.isdigit() or before.lower() != before.upper()
