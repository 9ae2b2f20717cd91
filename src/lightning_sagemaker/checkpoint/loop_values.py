# SPDX-License-Identifier: Apache-2.0
"""Values in the ``state`` of a custom loop, in a file that is read as data: ``torch.load(weights_only=True)``.

What torch reads stands in the file as it is; deques, NumPy's numbers and arrays as :mod:`.stored_values` writes them, and
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
    """A value as it stands in the file, and whether that is in another form.

    Raises:
        NotStored: If there is none that is read.

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
    """A value from its other form; what the loop's script has made is filled.

    Args:
        own: The script's.
        entry: From the file.
        device: For tensors that were not on the CPU.

    """
    if is_generator(own):
        restore_generator(own, entry)
        return own
    return filled(own, loaded(entry, device))


def refused(value: object) -> set[str]:
    """Names of what torch would refuse in a value."""
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
