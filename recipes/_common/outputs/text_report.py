# SPDX-License-Identifier: Apache-2.0
"""Statistics of a table of texts and labels for the data report."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_EXAMPLES = 5
_SAMPLE = 2000
"""Maximum number of texts, and of characters in each, of which scripts are counted."""
_BINS = 24

Texts = Sequence[Sequence[str]]
"""For each record its one or two texts."""


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
    keys = {split: [_key(parts) for parts in records] for split, records in texts.items()}
    return {
        "splits": {split: _count_split(texts[split], keys[split]) for split in texts},
        "classes": {split: _count_classes(values) for split, values in labels.items()},
        "overlaps": _overlaps(texts, keys),
        "conflicts": _conflicts(texts, keys, labels),
        "lengths": {split: _count_lengths(found, max_length) for split, found in lengths.items()},
        "max_length": max_length,
        "scripts": _scripts([text for records in texts.values() for parts in records[:_SAMPLE] for text in parts]),
    }


def _key(parts: Sequence[str]) -> bytes:
    """A hash that is equal for texts that differ only in case, spaces and Unicode form."""
    plain = "\x1f".join(" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in parts)
    return hashlib.blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _count_split(texts: Texts, keys: Sequence[bytes]) -> dict[str, Any]:
    return {
        "rows": len(texts),
        "empty": sum(not any(text.strip() for text in parts) for parts in texts),
        "duplicates": len(keys) - len(set(keys)),
    }


def _count_classes(values: Sequence[Any]) -> dict[str, int]:
    names = Counter(str(name) for value in values for name in (value if isinstance(value, list) else [value]))
    return dict(names.most_common())


def _overlaps(texts: Mapping[str, Texts], keys: Mapping[str, Sequence[bytes]]) -> list[dict[str, Any]]:
    """Texts that are in the training data and in another split."""
    if "train" not in keys:
        return []
    trained = set(keys["train"])
    found = []
    for split in keys:
        both = [] if split == "train" else [place for place, key in enumerate(keys[split]) if key in trained]
        if both:
            examples = [_short(texts[split][place]) for place in both[:_EXAMPLES]]
            found.append({"split": split, "count": len(both), "examples": examples})
    return found


def _conflicts(
    texts: Mapping[str, Texts], keys: Mapping[str, Sequence[bytes]], labels: Mapping[str, Sequence[Any]]
) -> dict[str, Any]:
    """Texts that occur with different labels."""
    seen: dict[bytes, dict[str, str]] = {}
    for split, values in labels.items():
        for place, (key, value) in enumerate(zip(keys[split], values, strict=True)):
            names = sorted(map(str, value)) if isinstance(value, list) else [str(value)]
            seen.setdefault(key, {}).setdefault(" | ".join(names), _short(texts[split][place]))
    several = [named for named in seen.values() if len(named) > 1]
    examples = [{"text": next(iter(named.values())), "labels": sorted(named)} for named in several[:_EXAMPLES]]
    return {"count": len(several), "examples": examples}


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
