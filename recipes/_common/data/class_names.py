# SPDX-License-Identifier: Apache-2.0
"""Names of classes, which the package `datasets` keeps in a table's schema, in place of their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_NO_LABEL = -1
"""Number of records without a label, such as those whose annotators did not agree."""

Names = Mapping[int, str]


def named_classes(records: Iterable[dict[str, Any]], features: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The records with class labels, and those in lists, by their names; ``None`` where there is no label.

    Args:
        records: Records, which are changed.
        features: Column -> type, as ``Features.to_dict()`` of `datasets` returns it.

    """
    columns = {column: names for column, feature in features.items() if (names := _names_of(feature))}
    for record in records:
        for column, names in columns.items():
            record[column] = _named(record[column], names)
        yield record


def _names_of(feature: Any) -> Names:
    if isinstance(feature, list) and len(feature) == 1:  # a list in older releases
        return _names_of(feature[0])
    if not isinstance(feature, dict):
        return {}
    if feature.get("_type") == "ClassLabel":
        return dict(enumerate(feature.get("names") or ()))
    return _names_of(feature.get("feature"))


def _named(value: Any, names: Names) -> Any:
    if isinstance(value, list):
        return [_named(part, names) for part in value]
    if not isinstance(value, int):
        return value
    return None if value == _NO_LABEL else names.get(value, value)
