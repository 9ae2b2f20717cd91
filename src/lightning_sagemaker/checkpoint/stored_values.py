# SPDX-License-Identifier: Apache-2.0
"""Plain values in a form that a checkpoint can hold: ``torch.load(weights_only=True)`` reads neither arrays nor deques.

A container is stored as its type and a list of its entries, a tensor as a CPU copy and its device; others unchanged.
"""

from __future__ import annotations

import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import cast

import numpy as np
import torch

LARGEST_STORED = 16 * 2**20
"""Maximum bytes of tensors in one value, as all ranks gather each rank's when a checkpoint is saved."""
_DICTS: dict[type, str] = {dict: "dict", defaultdict: "dict", OrderedDict: "OrderedDict", Counter: "Counter"}
_OTHERS: dict[type, str] = {list: "list", tuple: "tuple", set: "set", deque: "deque"}
_MADE: dict[str, Callable[[Iterable[object]], object]] = {"list": list, "tuple": tuple, "set": set}
_AS_THEY_ARE = frozenset({int, float, bool, str, type(None)})


class NotStored(ValueError):
    """A checkpoint cannot hold a value; the message continues "which"."""


def stored(value: object) -> object:
    """A copy of a plain value that a checkpoint can hold.

    Raises:
        NotStored: If the value cannot be stored.

    """
    if type(value) in _AS_THEY_ARE:
        return value
    if type(value) is torch.Tensor:
        return ("tensor", value.detach().to("cpu", copy=True).contiguous(), value.device.type)
    if isinstance(value, (np.ndarray, np.generic)):
        try:
            return ("array" if isinstance(value, np.ndarray) else "number", torch.from_numpy(np.array(value)))
        except (TypeError, ValueError):  # texts and dates
            raise NotStored(f"holds an array of {value.dtype}") from None
    if isinstance(value, dict) and type(value) in _DICTS:
        return (_DICTS[type(value)], [(stored(key), stored(entry)) for key, entry in value.items()])
    if type(value) not in _OTHERS:
        raise NotStored(f"holds a {type(value).__name__}")
    entries = list(cast("Iterable[object]", value))
    if not _AS_THEY_ARE.issuperset(map(type, entries)):
        entries = list(map(stored, entries))
    return (_OTHERS[type(value)], entries, value.maxlen) if type(value) is deque else (_OTHERS[type(value)], entries)


def loaded(value: object, device: torch.device) -> object:
    """Restore the value that was passed to :func:`stored`.

    Args:
        value: Value in a checkpoint.
        device: The rank's device, for tensors that were not on the CPU.

    """
    if not isinstance(value, tuple):
        return value
    kind, content, *rest = value
    if kind == "tensor":
        return content.to("cpu" if rest == ["cpu"] else device)
    if kind in ("array", "number"):
        return content.numpy() if kind == "array" else content.numpy()[()]
    if kind in _DICTS.values():
        pairs = {loaded(key, device): loaded(entry, device) for key, entry in content}
        return {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}[kind](pairs)
    entries = [loaded(entry, device) for entry in content]
    return deque(entries, *rest) if kind == "deque" else _MADE[kind](entries)


def is_large(value: object) -> bool:
    """Whether a stored value has more tensors than a checkpoint should hold."""
    return _bytes(value) > LARGEST_STORED


def _bytes(value: object) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(_bytes, value)) if isinstance(value, (list, tuple)) else 0


def of_another_number(
    ranks: list[Mapping[str, Mapping[str, object]]], rank: int, size: int
) -> dict[str, dict[str, object]]:
    """This rank's share of the values, by owner and name, that another number of ranks had stored.

    Values that were equal on all ranks are kept by each. Entries of lists that differed are distributed, as with an epoch's
    outputs; of other values one rank's are taken.

    Args:
        ranks: Stored values of each earlier rank.
        rank: Current rank of this process.
        size: Current number of ranks.

    """
    found: dict[str, dict[str, object]] = {}
    own = ranks[rank::size]
    for owner, values in ranks[rank % len(ranks)].items():
        for name, value in values.items():
            others = [one.get(owner, {}).get(name) for one in ranks]
            if isinstance(value, tuple) and value[0] == "list" and len({pickle.dumps(other) for other in others}) > 1:
                lists = [one.get(owner, {}).get(name) for one in own]
                value = ("list", [entry for one in lists if isinstance(one, tuple) for entry in one[1]])
            found.setdefault(owner, {})[name] = value
    return found
