# SPDX-License-Identifier: Apache-2.0
"""Questions from the records of a table, whose answers may be written in several ways."""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from lightning_sagemaker.recipes._common.data.tables import DataError, list_names, require_columns
from lightning_sagemaker.recipes.bert_qa.question import Question

_log = logging.getLogger(__name__)

Answers = tuple[tuple[str, ...], tuple[int, ...]]
"""Texts and their starts in the context."""

_ANSWER_COLUMNS = ("answer", "answer_text")
"""Columns with one answer as text, whose start is in ``answer_start``."""
_DETECTED = "detected_answers"
"""MRQA's answers with their places."""
_KNOWN = ("answers", _DETECTED, *_ANSWER_COLUMNS)
"""Columns, or keys of SQuAD's questions, with answers."""
_IDS = ("qid", "id")
_COLUMNS = (*_IDS, "question", "context", "answer_start", "is_impossible")
"""Other columns that are read; in a table case does not count."""
_TRUE, _FALSE = ("true", "t", "yes", "y", "1", "1.0"), ("false", "f", "no", "n", "0", "0.0", "", "none", "nan")
_UNPLACED = -1
"""Start of an answer without ``answer_start``: it counts as misplaced (see ``data.misplaced_answers``)."""


def table_questions(
    records: Sequence[Mapping[str, Any]], name: str, first: int = 0, option: str = "data.predict"
) -> list[Question]:
    """The questions of a table with ``question``, ``context`` and, if they are known, answers.

    Answers are in ``answers``, as SQuAD's (an object, or its text in JSON or Python), in ``answer`` (or ``answer_text``) and
    ``answer_start``, or in MRQA's ``detected_answers``. A missing ``id`` is the record's number, from 1 on.
    Where ``is_impossible`` is true there is no answer.

    Args:
        records: Records of the table.
        name: Name of the table, for messages.
        first: Number of records before these, for missing ids.
        option: Option that names the data: that to train on or to validate with needs answers.

    Raises:
        DataError: If a column is missing, a question or a context is empty, or answers cannot be read.

    """
    if not records:
        return []
    names = {column: column.lower() for column in records[0] if column.lower() in (*_COLUMNS, *_KNOWN)}
    require_columns([{names.get(column, column): None for column in records[0]}], ("question", "context"), name)
    questions = list(_questions(records, names, name, first))
    check_answers({names.get(column, column) for column in records[0]}, option, name)
    return questions


def _questions(
    records: Sequence[Mapping[str, Any]], names: Mapping[str, str], name: str, first: int
) -> Iterator[Question]:
    for number, read in enumerate(records, start=1):
        record: dict[str, Any] = {known: read.get(column) for column, known in names.items()}
        for column in ("question", "context"):
            if not isinstance(record[column], str) or not record[column].strip():
                raise DataError(
                    f"{name}: record {number} has no {column}. HINT: give each a {column}, or delete such records."
                )
        texts, starts = read_answers(record, f"{name}: record {number}")
        identifier = identifier_of(record)
        identifier = first + number if identifier is None else identifier
        yield Question(str(identifier), record["question"], record["context"], texts, starts, read)


def identifier_of(record: Mapping[str, Any]) -> Any:
    """The id of a question, MRQA's ``qid`` before ``id``; ``None`` without one."""
    return next((record[name] for name in _IDS if record.get(name) not in (None, "")), None)


def check_answers(names: Collection[str], option: str, where: str) -> None:
    """Refuse data to train on or to validate with that says nothing about answers; report it for data to test with.

    Args:
        names: Names of the columns, or of the keys of SQuAD's questions.
        option: Option that names the data, such as ``data.train``.
        where: Name of the data, for messages.

    Raises:
        DataError: If no name is known, and the data needs answers.

    """
    if any(name in names for name in _KNOWN):
        return
    if option == "data.test":
        _log.warning("%s has no answers: if it is evaluated, its questions count as those without an answer", where)
    elif option != "data.predict":
        raise DataError(
            f"{where} has no answers, but {list_names(names)}. HINT: name the column with the answers answers, as in SQuAD,"
            " or answer, with their starts in answer_start."
        )


def read_answers(record: Mapping[str, Any], where: str) -> Answers:
    """Texts and starts of a record's answers, in any of the forms of :func:`table_questions`.

    Raises:
        DataError: If they cannot be read.

    """
    if _is_impossible(record, where):
        return (), ()
    column = next((name for name in _ANSWER_COLUMNS if record.get(name) not in (None, "")), None)
    given = record.get("answers")
    try:
        if record.get(_DETECTED):
            return _structured(_placed(record[_DETECTED]))
        if given not in (None, "", [], {}):
            return _structured(_parse(given) if isinstance(given, str) else given)
        if column is None:
            return (), ()
        if isinstance(record[column], Mapping | list):
            return _structured(record[column])
        start = record.get("answer_start")
        return (str(record[column]),), (_UNPLACED if start in (None, "") else _whole(start),)
    except (LookupError, TypeError, ValueError, SyntaxError) as error:
        raise DataError(
            f"{where} has the answers {given if column is None else record[column]!r}, which cannot be read"
            f' ({error}). HINT: they must be {{"text": [...], "answer_start": [...]}}, or a text in the column answer and'
            " a number in answer_start."
        ) from error


def _is_impossible(record: Mapping[str, Any], where: str) -> bool:
    """Whether SQuAD 2.0's ``is_impossible`` says that there is no answer, whatever else does, as in its own scripts."""
    value = str(record.get("is_impossible")).strip().lower()
    if value not in (*_TRUE, *_FALSE):
        raise DataError(f"{where} has {value!r} in is_impossible. HINT: write true or false.")
    return value in _TRUE


def _structured(answers: Any) -> Answers:
    """Texts and starts from lists by name, or a list of answers, or of texts only. An empty text is no answer."""
    if isinstance(answers, list) and all(isinstance(answer, str) for answer in answers):
        answers = {"text": answers, "answer_start": [_UNPLACED] * len(answers)}
    elif isinstance(answers, list):
        answers = {key: [answer[key] for answer in answers] for key in ("text", "answer_start")}
    texts, starts = answers["text"], answers["answer_start"]
    if isinstance(texts, str):
        texts, starts = [texts], [starts]
    if len(texts) != len(starts):
        raise ValueError(f"{len(texts)} texts and {len(starts)} starts")
    found = [(str(text), _whole(start)) for text, start in zip(texts, starts, strict=True) if text != ""]
    return tuple(text for text, _ in found), tuple(start for _, start in found)


def _placed(detected: Any) -> list[dict[str, Any]]:
    """MRQA's answers as SQuAD's: each with the first of its places, in MRQA's own files or in those of `datasets`."""
    if isinstance(detected, Mapping):
        starts = [spans["start"][0] for spans in detected["char_spans"]]
        return [{"text": text, "answer_start": start} for text, start in zip(detected["text"], starts, strict=True)]
    return [{"text": answer["text"], "answer_start": answer["char_spans"][0][0]} for answer in detected]


def _whole(start: Any) -> int:
    """A start as a number; pandas writes ``25.0`` where one of a column is missing."""
    if (number := float(start)) % 1:
        raise ValueError(f"{start!r} is not a whole number")
    return int(number)


def _parse(text: str) -> Any:
    """Parse JSON, or Python's and pandas' text of the same."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(_without_arrays(text))
    except (ValueError, SyntaxError):
        raise ValueError("it is neither JSON nor Python") from None


def _without_arrays(text: str) -> str:
    """Replace ``array([...], dtype=object)``, as pandas writes arrays, by lists."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise ValueError("it is neither JSON nor Python") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            node.values = [_list_of(value) for value in node.values]
    return ast.unparse(tree)


def _list_of(node: ast.expr) -> ast.expr:
    is_array = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "array" and node.args
    return node.args[0] if is_array else node  # type: ignore[attr-defined]
