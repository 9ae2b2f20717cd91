# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters and channels encoded so that SDK 3's container passes them on; the driver there decodes them.

The SDK's start script decodes every string that is valid JSON, so ``"1.10"`` would become 1.1, and writes all values
into a shell file as ``export SM_HP_NAME='value'``, which a single quote or an invalid variable name would break. SDK 2's
containers have neither limit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

Json = Mapping[str, Any]
"""An object of JSON."""

_PARAMETER = re.compile(r"[A-Za-z0-9_-]+")
_CHANNEL = re.compile(r"[A-Za-z0-9_]+")


def carried_values(values: Mapping[str, object]) -> dict[str, str]:
    """Hyperparameters as they are sent: name as sent -> encoded value."""
    names = parameter_names(values)
    return {names[name]: _packed(value) if _needs_packing(value) else _text(value) for name, value in values.items()}


def parameter_names(values: Iterable[str]) -> dict[str, str]:
    """Name of a hyperparameter -> name as sent: the same, if a shell variable can be named after it."""
    return _portable(values, _PARAMETER)


def channel_names(channels: Iterable[str]) -> dict[str, str]:
    """Name of a channel -> name as sent: the same, if a shell variable can be named after it."""
    return _portable(channels, _CHANNEL)


def carried_config(values: Mapping[str, object], channels: Iterable[str]) -> dict[str, object]:
    """What the driver needs for decoding; empty if nothing was encoded.

    Returns:
        ``packed``: names as sent of hyperparameters that are encoded as JSON once more than the SDK decodes; ``names``
        and ``channels``: name as sent -> original name.

    """
    names, places = parameter_names(values), channel_names(channels)
    found = {
        "packed": [names[name] for name, value in values.items() if _needs_packing(value)],
        "names": {sent: name for name, sent in names.items() if sent != name},
        "channels": {sent: name for name, sent in places.items() if sent != name},
    }
    return {key: value for key, value in found.items() if value}


def original_values(config: Json, sent: Json) -> Json:
    """Hyperparameters with their original names and values, as the driver decodes them in the container.

    Args:
        config: :func:`carried_config` of the job; it may be empty.
        sent: Hyperparameters as they were sent, each decoded once.

    """
    names, packed = config.get("names") or {}, config.get("packed") or []
    return {names.get(name, name): json.loads(value) if name in packed else value for name, value in sent.items()}


def _needs_packing(value: object) -> bool:
    return "'" in _text(value)


def _packed(value: object) -> str:
    """JSON without single quotes, encoded as JSON again: the SDK decodes it once, the driver a second time."""
    return json.dumps(json.dumps(value).replace("'", "\\u0027"))


def _text(value: object) -> str:
    """The value as the SDK writes it: JSON, except for strings that are not valid JSON, which stay as they are."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        json.loads(value)
    except ValueError:
        return value
    return json.dumps(value)


def _portable(names: Iterable[str], pattern: re.Pattern[str]) -> dict[str, str]:
    everything = list(names)
    taken = set(everything)
    found = {}
    for name in everything:
        sent = name
        if name and not pattern.fullmatch(name):
            sent = re.sub(r"[^A-Za-z0-9_]", "_", name)
            while sent in taken:
                sent += "_"
        taken.add(sent)
        found[name] = sent
    return found
