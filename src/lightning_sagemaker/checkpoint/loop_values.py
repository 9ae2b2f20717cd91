# SPDX-License-Identifier: Apache-2.0
"""Values in the ``state`` of a custom loop, for a file that ``torch.load(weights_only=True)`` reads.

Values that torch can read are stored unchanged; deques, NumPy's numbers and arrays as in :mod:`.stored_values`, and
generators as their states.
"""

from __future__ import annotations

from typing import cast

import torch

from lightning_sagemaker.checkpoint.generators import generator_state, is_generator, restore_generator
from lightning_sagemaker.checkpoint.own_globals import refused_names
from lightning_sagemaker.checkpoint.plain_values import EXACT, filled
from lightning_sagemaker.checkpoint.stored_values import NotStored, loaded, stored


def as_data(value: object) -> tuple[object, bool]:
    """Convert a value for the file; returns it, and whether it was converted.

    Raises:
        NotStored: If it cannot be converted.

    """
    if is_generator(value):
        return generator_state(value), True
    if not (names := refused(value)):
        return value, False
    try:
        return stored(value), True
    except NotStored as error:
        raise NotStored(f"{error} ({', '.join(sorted(names))})") from None


def from_data(own: object, entry: object, device: torch.device) -> object:
    """Convert a value back; an object that the script has created is filled.

    Args:
        own: The script's value.
        entry: Value from the file.
        device: Device for tensors that were not on the CPU.

    """
    if is_generator(own):
        restore_generator(own, entry)
        return own
    return filled(own, loaded(entry, device))


def refused(value: object) -> set[str]:
    """Names of classes and functions in a value that torch would refuse."""
    found: set[str] = set()
    pending, seen = [value], set[int]()
    while pending:
        one = pending.pop()
        if type(one) in EXACT or type(one) is torch.Tensor or id(one) in seen:
            continue
        if type(one) in (dict, list, tuple):
            seen.add(id(one))
            entries = [*one.keys(), *one.values()] if isinstance(one, dict) else [*cast("list[object]", one)]
            pending.extend(entries if not EXACT.issuperset(map(type, entries)) else ())
        else:
            found |= refused_names(one)
    return found
