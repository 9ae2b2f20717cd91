# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF001 (which characters look like others is what some of this is about)
"""Finds errors in a table of texts and labels; refuses them with the records' numbers, or cleans them on request."""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lightning_sagemaker.recipes._common.data.table import Record, Table
from lightning_sagemaker.recipes._common.data.tables import DataError

CLEANINGS = ("strip", "unicode", "casefold", "drop_empty")
"""Cleanings: of labels' spaces, Unicode form (NFKC) and case; ``drop_empty`` drops records without text or label."""

_MISSING = frozenset(
    {
        "",
        "nan",
        "-nan",
        "nat",
        "<na>",
        "na",
        "n/a",
        "#n/a",
        "#na",
        "#n/a n/a",
        "1.#ind",
        "-1.#ind",
        "1.#qnan",
        "-1.#qnan",
        "null",
        "none",
        "\\n",
    }
    | {"#ref!", "#name?", "#value!", "#div/0!", "#num!", "#null!"}
)
"""Texts that spreadsheets, libraries and dumps of databases write for a missing value or an error, in lower case."""
_ANSWERS: tuple[tuple[str, set[str], set[str]], ...] = (
    ("answer", {"accept"}, {"reject", "ignore"}),  # Prodigy
    ("status", {"validated", "edited"}, {"discarded", "default"}),  # Argilla 1
    ("{label}.status", {"submitted"}, {"discarded", "draft"}),  # Argilla 2
)
"""Columns of annotation tools that say whether a label counts; its values where it does, and where not, in lower case."""
_NAMED = 5
"""Maximum number of records or labels in a message."""
_ALIKE = {
    **str.maketrans("‘’‚‛“”„‟«»‐‑–—авеікмнорстухјѕ", "'" * 10 + "----abeikmhopctyxjs"),
    **dict.fromkeys((0x307, 0xFE0E, 0xFE0F)),
}
"""Typographic quotes and dashes -> straight ones; Cyrillic letters -> the Latin ones like them, or like their capitals;
nothing: the dot that case folding leaves of a Turkish capital, and variants of emoji."""
_AROUND_SIGNS = re.compile(r"\s*([^\w\s])\s*")
_BETWEEN_WORDS = re.compile(r"(?<=[^\W_])[\s_-]+(?=[^\W_])")
_AROUND_WORDS = re.compile(r"^['\"]+(?=[^\W_])|(?<=[^\W_])['\".,;:]+$")
"""Quotes, and punctuation at the end."""


def strip(text: str) -> str:
    """``text`` without zero-width characters, spaces at the ends, and repeated spaces."""
    return " ".join("".join(char for char in text if unicodedata.category(char) != "Cf").split())


_RULES: dict[str, Callable[[str], str]] = {
    "strip": strip,
    "unicode": lambda text: unicodedata.normalize("NFKC", text),
    "casefold": str.casefold,
}


def look(text: str) -> str:
    """A form that is equal for labels that look the same: ``R&D``, ``r&d `` and ``R&amp;D``; ``1`` and ``1.0``.

    So are ``credit-card``, ``credit_card`` and ``Credit card.``; straight and typographic quotes; Latin and Cyrillic ``a``.
    """
    plain = strip(unicodedata.normalize("NFKC", html.unescape(text))).casefold().translate(_ALIKE)
    plain = _BETWEEN_WORDS.sub(" ", _AROUND_WORDS.sub("", _AROUND_SIGNS.sub(r"\1", plain)))
    try:
        number = float(plain)
    except ValueError:
        return plain
    # As a float a long number, such as an id, would equal its neighbors.
    return str(int(plain if plain.isdecimal() else number)) if number.is_integer() else plain


def is_missing(value: Any, kept: Collection[str] | None = ()) -> bool:
    """Whether a label stands for a missing value; of several labels, whether one does.

    Args:
        value: Label as read.
        kept: Values that are labels although they look like missing values. ``None``: all texts are.

    """
    if isinstance(value, list | tuple):
        return any(is_missing(part, kept) for part in value)
    if value is None or value != value:
        return True
    return isinstance(value, str) and kept is not None and value not in kept and strip(value).lower() in _MISSING


def clean_records(
    records: Table,
    texts: Sequence[str],
    label: str,
    cleanings: Collection[str],
    label_map: Mapping[str, str] | None,
    what: str,
) -> tuple[Table, Counter[str]]:
    """The cleaned records, and the number of labels or records that each cleaning has changed or dropped.

    Args:
        records: Records of one split.
        texts: Names of the text columns.
        label: Name of the label column.
        cleanings: Names out of :data:`CLEANINGS`.
        label_map: Label in the data -> label to use, an empty one if it means no label; its keys are labels although they
            look like missing values. ``None``: all texts are labels.
        what: Name of the data, for messages.

    Raises:
        DataError: If texts or labels are missing, and ``drop_empty`` is not in ``cleanings``.

    """
    counts: Counter[str] = Counter()
    rules = [(name, _RULES[name]) for name in CLEANINGS if name in cleanings and name in _RULES]
    if rules:
        records = records.replace(label, [_apply(rules, record[label], counts) for record in records])
    no_label: list[int] = []
    no_text: list[int] = []
    for number, record in enumerate(records):
        if is_missing(record[label], label_map) or (label_map and label_map.get(str(record[label])) == ""):
            no_label.append(number)
        if any(is_empty(record[column]) for column in texts):
            no_text.append(number)
    if "drop_empty" in cleanings:
        left = np.ones(len(records), bool)
        left[[*no_label, *no_text]] = False
        counts["drop_empty"] = int((~left).sum())
        return records.take(np.flatnonzero(left)), counts
    if no_label:
        values = Counter(repr(record[label]) for record in records.take(np.array(no_label)))
        raise DataError(
            f"{what} has no label in {_numbers(no_label)} ({', '.join(values)} in the column {label!r})."
            " HINT: fill them in, or drop such records with --data.clean drop_empty; if one of these is the name of a class,"
            ' map it with --data.label_map \'{"none": "none"}\'.'
        )
    if no_text:
        raise DataError(
            f"{what} has no text in {_numbers(no_text)} (column {' or '.join(map(repr, texts))})."
            " HINT: fill them in, or drop such records with --data.clean drop_empty."
        )
    return records, counts


def check_texts(records: Iterable[Record], columns: Sequence[str], what: str) -> None:
    """Refuse values that are not text, such as a list in JSON.

    Raises:
        DataError: If a value is neither text, number nor missing.

    """
    for number, record in enumerate(records, start=1):
        for column in columns:
            if not isinstance(record[column], str | int | float | None):
                raise DataError(
                    f"{what} has no text in record {number}, but {type(record[column]).__name__}"
                    f" {str(record[column])[:60]} (column {column!r}). HINT: data.text_columns takes columns of text."
                )


def check_label_kinds(records: Iterable[Record], column: str, what: str) -> None:
    """Refuse labels that are no names or numbers, such as spans of the text as annotation tools export them.

    Raises:
        DataError: If a value is neither, nor a list of such, nor missing; or if some are numbers, and others true or false.

    """
    kinds: set[bool] = set()
    for number, record in enumerate(records, start=1):
        value = record[column]
        for part in value if isinstance(value, list | tuple) else [value]:
            if isinstance(part, bytes | Mapping | Sequence) and not isinstance(part, str):
                raise DataError(
                    f"{what} has no label in record {number}, but {type(part).__name__} {str(part)[:60]} (column"
                    f" {column!r}). HINT: data.label_column takes a column of names, numbers or lists of them."
                )
            if isinstance(part, int):
                kinds.add(isinstance(part, bool))
            if len(kinds) > 1:
                raise DataError(
                    f"{what} has the label {part!r} in record {number} (column {column!r}), and others that are"
                    f" {'numbers' if isinstance(part, bool) else 'true or false'}. HINT: write all in one way."
                )


def check_answers(records: Table, label: str, what: str) -> None:
    """Refuse labels that annotators have rejected, as their tools export them beside those that they have accepted.

    Args:
        records: Records of one split.
        label: Name of the label column.
        what: Name of the data, for messages.

    Raises:
        DataError: If there are such labels.

    """
    for name, accepted, others in _ANSWERS:
        column = name.format(label=label)
        if column == label or column not in records.columns:
            continue
        answers = [_words(record[column]) for record in records]
        wrong = [number for number, words in enumerate(answers) if words & others]
        if wrong and set().union(*answers) <= accepted | others:
            raise DataError(
                f"{what} has labels that were not accepted in {_numbers(wrong)} (column {column!r})."
                f" HINT: delete the records whose {column} is not {' or '.join(sorted(accepted))}, or that column."
            )


def _words(value: Any) -> set[str]:
    return {str(part).lower() for part in (value if isinstance(value, list | tuple) else [value])}


def check_labels(names: Iterable[str], what: str) -> None:
    """Refuse different labels that look the same.

    Args:
        names: Names of all labels, after :func:`~.labels.clean`, each as often as it occurs.
        what: Name of the data, for messages.

    Raises:
        DataError: If there are such labels.

    """
    counts = Counter(names)
    alike: dict[str, list[str]] = {}
    for name in counts:
        alike.setdefault(look(name), []).append(name)
    pairs = [sorted(group, key=lambda name: -counts[name]) for group in alike.values() if len(group) > 1]
    if pairs:
        named = "; ".join(" and ".join(f"{name!r} ({counts[name]})" for name in group) for group in pairs[:_NAMED])
        raise DataError(
            f"{what} has labels that look alike: {named}{'; ...' if len(pairs) > _NAMED else ''}."
            " HINT: correct them; or merge those that differ in spaces, Unicode form or case with --data.clean"
            " strip,unicode,casefold, and others with --data.label_map; or rename the classes."
        )


def is_empty(value: Any) -> bool:
    """Whether a text has nothing to read."""
    if value is None or value != value:
        return True
    text = str(value)
    return not any(map(str.isalnum, text)) and not strip(text)  # the second is slow


def _apply(rules: Sequence[tuple[str, Callable[[str], str]]], value: Any, counts: Counter[str]) -> Any:
    if isinstance(value, list | tuple):
        return [_apply(rules, part, counts) for part in value]
    if not isinstance(value, str):
        return value
    for name, rule in rules:
        changed = rule(value)
        counts[name] += changed != value
        value = changed
    return value


def _numbers(found: Sequence[int]) -> str:
    """Numbers of records, counted from 1, for messages."""
    named = ", ".join(str(number + 1) for number in found[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"record{'s' if len(found) > 1 else ''} {named}{more}"
