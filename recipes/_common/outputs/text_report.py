# SPDX-License-Identifier: Apache-2.0
"""Statistics of a table of texts and labels for the data report."""

from __future__ import annotations

import hashlib
import unicodedata
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_EXAMPLES = 5
_SAMPLE = 2000
"""Maximum number of texts, and of characters in each, of which scripts are counted."""
_BINS = 24
_REPEATED = 3
"""Number of records per class from which texts are expected to differ."""

Texts = Sequence[Sequence[str]]
"""For each record its one or two texts."""
Keys = npt.NDArray[np.uint64]
"""For each record a hash of its texts; two of 10 million records have the same by chance once in 400,000 tables."""


def count_everything(
    texts: Mapping[str, Texts],
    labels: Mapping[str, Sequence[Any]],
    lengths: Mapping[str, Sequence[int]],
    max_length: int,
) -> dict[str, Any]:
    """All counts, in plain containers.

    Args:
        texts: Split -> texts.
        labels: Split -> label of each record, a list where there are several; splits without labels are left out.
        lengths: Split -> tokens of each record before truncation.
        max_length: Maximum tokens of a record.

    """
    keys: dict[str, Keys] = {}
    empty: dict[str, int] = {}
    for split, records in texts.items():
        keys[split], empty[split] = _scan(records)
    return {
        "splits": {split: _count_split(keys[split], empty[split]) for split in texts},
        "classes": {split: _count_classes(values) for split, values in labels.items()},
        "overlaps": _overlaps(texts, keys),
        "conflicts": _conflicts(texts, keys, labels),
        "unlabeled": {split: sum(value == [] for value in values) for split, values in labels.items()},
        "telling": _telling(texts["train"], labels["train"]) if "train" in labels else [],
        "lengths": {split: _count_lengths(found, max_length) for split, found in lengths.items()},
        "max_length": max_length,
        "scripts": _scripts([text for records in texts.values() for parts in records[:_SAMPLE] for text in parts]),
    }


def _scan(texts: Texts) -> tuple[Keys, int]:
    """A key of each record, and the number of those without text."""
    keys = array("Q")
    empty = 0
    for parts in texts:
        keys.append(_key(parts))
        empty += not any(text.strip() for text in parts)
    return np.array(keys, dtype=np.uint64), empty


def _key(parts: Sequence[str]) -> int:
    """A hash that is equal for texts that differ only in case, spaces and Unicode form."""
    plain = "\x1f".join(" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in parts)
    digest = hashlib.blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _count_split(keys: Keys, empty: int) -> dict[str, Any]:
    return {"rows": len(keys), "empty": empty, "duplicates": len(keys) - len(np.unique(keys))}


def _count_classes(values: Sequence[Any]) -> dict[str, int]:
    names = Counter(str(name) for value in values for name in (value if isinstance(value, list) else [value]))
    return dict(names.most_common())


def _overlaps(texts: Mapping[str, Texts], keys: Mapping[str, Keys]) -> list[dict[str, Any]]:
    """Texts that are in the training data and in another split."""
    found = []
    for split in keys if "train" in keys else ():
        both = np.flatnonzero(np.isin(keys[split], keys["train"])) if split != "train" else np.empty(0, np.int64)
        if len(both):
            examples = [_short(texts[split][place]) for place in both[:_EXAMPLES].tolist()]
            found.append({"split": split, "count": len(both), "examples": examples})
    return found


def _conflicts(
    texts: Mapping[str, Texts], keys: Mapping[str, Keys], labels: Mapping[str, Sequence[Any]]
) -> dict[str, Any]:
    """Texts that occur with different labels."""
    if not labels:
        return {"count": 0, "examples": []}
    numbers: dict[str, int] = {}
    all_keys = np.concatenate([keys[split] for split in labels])
    named = (_label_text(value) for values in labels.values() for value in values)
    codes = np.fromiter((numbers.setdefault(name, len(numbers)) for name in named), np.int32, len(all_keys))
    order = np.lexsort((codes, all_keys))  # equal texts stay in their order where their labels are equal
    groups = np.flatnonzero(np.r_[True, np.diff(all_keys[order]) != 0])
    ends = np.r_[groups[1:], len(order)]
    several = np.flatnonzero(codes[order[groups]] != codes[order[ends - 1]])  # sorted: the first and the last differ
    firsts = sorted((int(np.min(order[groups[group] : ends[group]])), int(group)) for group in several)
    names = list(numbers)
    begins = np.cumsum([0, *(len(values) for values in labels.values())])
    examples = []
    for first, group in firsts[:_EXAMPLES]:
        part = int(np.searchsorted(begins, first, side="right")) - 1
        text = _short(texts[list(labels)[part]][first - int(begins[part])])
        found = sorted({names[code] for code in codes[order[groups[group] : ends[group]]]})
        examples.append({"text": text, "labels": found})
    return {"count": len(several), "examples": examples}


def _telling(texts: Texts, labels: Sequence[Any]) -> list[int]:
    """Which of the texts are other names of the classes: there are as many, for many records, and each has one class."""
    names = [_label_text(value) for value in labels]
    number = len(set(names))
    found = []
    for place in range(len(texts[0]) if len(names) >= _REPEATED * number else 0):
        classes: dict[str, str] = {}
        for parts, name in zip(texts, names, strict=True):
            if classes.setdefault(parts[place], name) != name or len(classes) > number:
                break
        else:
            found.append(place)
    return found


def _label_text(value: Any) -> str:
    return " | ".join(sorted(map(str, value))) if isinstance(value, list) else str(value)


def _count_lengths(lengths: Sequence[int], max_length: int) -> dict[str, Any]:
    values = np.asarray(lengths if len(lengths) else [0])
    top = int(max(values.max(), 1))
    counts, edges = np.histogram(values, bins=min(_BINS, top), range=(0, top + 1))
    return {
        "median": int(np.median(values)),
        "p99": int(np.percentile(values, 99)),
        "longest": int(values.max()),
        "cut": int((values > max_length).sum()),
        "histogram": {"counts": counts.tolist(), "edges": [float(edge) for edge in edges]},
    }


def _scripts(texts: Sequence[str]) -> dict[str, float]:
    """Share of the letters in each script, by the first word of the characters' names in Unicode."""
    letters = Counter(char for text in texts[:_SAMPLE] for char in text[:_SAMPLE] if char.isalpha())
    names: Counter[str] = Counter()
    for char, count in letters.items():
        names[unicodedata.name(char, "UNKNOWN").split()[0].capitalize()] += count
    total = max(1, names.total())
    return {name: count / total for name, count in names.most_common(6)}


def _short(parts: Sequence[str]) -> str:
    text = " / ".join(" ".join(part.split()) for part in parts)
    return text if len(text) <= 100 else f"{text[:97]}..."
