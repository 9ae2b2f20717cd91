# SPDX-License-Identifier: Apache-2.0
"""Checks arguments of a strategy for misspelt names when the strategy is created.

Lightning passes unknown arguments of its ``DDPStrategy`` on to torch's wrapper, which is created after the rendezvous,
and never for one process.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping

from torch.nn.parallel import DistributedDataParallel

from lightning_sagemaker._lightning import DDPStrategy, FabricDDPStrategy

_SET_BY_LIGHTNING = {"module", "device_ids"}
"""Arguments of torch's wrapper."""
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_CLOSE = 0.75
"""Minimum similarity of two names for one to be suggested."""


def check_keywords(given: Mapping[str, object], *kinds: type) -> None:
    """Raise for unknown arguments.

    Args:
        given: Names and values of arguments.
        kinds: Class of the strategy; several if the choice is not known yet.

    Raises:
        TypeError: If an argument is unknown; the message lists the known ones.

    """
    accepted = set().union(*(_accepted_keywords(kind) for kind in kinds))
    for name, value in given.items():
        if name not in accepted:
            close = difflib.get_close_matches(name, accepted, n=1, cutoff=_CLOSE)
            did_you_mean = f"did you mean {close[0]}? " if close else ""
            raise TypeError(
                f"{' or '.join(kind.__name__ for kind in kinds)} was given {name}={value!r}, but has no argument {name!r}."
                f" HINT: {did_you_mean}It accepts {', '.join(sorted(accepted))}."
            )


def _accepted_keywords(kind: type) -> set[str]:
    """Arguments of a strategy, of its base classes, and of the wrapper that it puts around the model."""
    names = {name for base in kind.__mro__ if "__init__" in vars(base) for name in _names(base)}
    if issubclass(kind, (DDPStrategy, FabricDDPStrategy)):
        names |= set(_names(DistributedDataParallel)) - _SET_BY_LIGHTNING
    return names


def _names(kind: type) -> Iterable[str]:
    if kind is object:
        return []
    parameters = inspect.signature(vars(kind)["__init__"]).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind in _NAMED and parameter.name != "self"]
