# SPDX-License-Identifier: Apache-2.0
"""Tags of a job: a dictionary, or a list of the API's dictionaries or of objects of SDK 3."""

from __future__ import annotations

from collections.abc import Mapping

from lightning_sagemaker.errors import LaunchError


def named_tags(tags: object) -> object:
    """Tag -> value.

    Args:
        tags: A dictionary; or a list of ``{"Key": ..., "Value": ...}``, or of objects with ``key`` and ``value`` such as
            SDK 3's ``Tag``. Numbers become text. Anything else is returned as it is.

    Raises:
        LaunchError: If an item is none of these, or two have the same key: a job would lack a tag that it is billed by.

    """
    if isinstance(tags, Mapping):
        pairs = list(tags.items())
    elif isinstance(tags, (list, tuple)):
        pairs = [_pair(tag) for tag in tags]
    else:
        return tags
    found: dict[str, str] = {}
    for key, value in pairs:
        if not isinstance(key, str) or not isinstance(value, (str, int, float)):
            raise LaunchError(f'tags has {key!r}: {value!r}. HINT: write {{"team": "text"}}.')
        if key in found:
            raise LaunchError(f"tags has the key {key!r} twice. HINT: keys are unique.")
        found[key] = str(value)
    return found


def _pair(tag: object) -> tuple[object, object]:
    for names in (("Key", "Value"), ("key", "value")):
        given = [tag.get(name) if isinstance(tag, Mapping) else getattr(tag, name, None) for name in names]
        if isinstance(given[0], str) and isinstance(given[1], (str, int, float)):
            return given[0], given[1]
    raise LaunchError(f'tags has {tag!r}. HINT: write {{"Key": "team", "Value": "text"}}.')
