# SPDX-License-Identifier: Apache-2.0
"""Freezes weights of a model by layer number or name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import nn

_LAYERS = re.compile(r"(?:layers:)?(\d+)")
_NEAREST = 3


def freeze(model: Any, names: str | Sequence[str]) -> str:
    """Freeze some weights of a transformers model.

    Args:
        model: Model to freeze, in place.
        names: List, or comma-separated text, of ``layers:N`` or ``N`` for the first N layers, parts of names
            (``embeddings``, ``encoder.layer.0``, ``LayerNorm``), or patterns of names (``*.attention.*``).

    Returns:
        A line that says how many weights are frozen.

    Raises:
        MisconfigurationException: If a name matches no weight, or nothing is left to train.

    """
    words = split_names(names)
    # Tied weights have several names; any of them may be given.
    named = dict(model.named_parameters(remove_duplicate=False))
    for word in words:
        layers = _LAYERS.fullmatch(word)
        found = _in_layers(model, word, int(layers[1])) if layers else matching(word, named, "model.freeze")
        for name in found:
            named[name].requires_grad_(False)
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    trained, total = count_weights(model)
    if not trained:
        raise MisconfigurationException(
            f"model.freeze={','.join(words)} was set, which freezes all {total:,} weights. HINT: leave some trainable."
        )
    return f"frozen: {total - trained:,} of {total:,} weights, in {len(frozen)} tensors ({', '.join(words)})"


def split_names(names: str | Sequence[str]) -> list[str]:
    """The names in a comma-separated text or a list."""
    parts = names.split(",") if isinstance(names, str) else names
    return [part.strip() for part in parts if part.strip()]


def count_weights(model: nn.Module) -> tuple[int, int]:
    """Number of trainable and of all parameters; tied weights count once."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(size for size, trained in sizes if trained), sum(size for size, _ in sizes)


def matching(pattern: str, names: Iterable[str], option: str) -> list[str]:
    """Those of ``names`` that match ``pattern``, or contain it as one or more of their parts between dots.

    Args:
        pattern: Pattern or parts of a name: ``bert.embeddings.*``, ``embeddings`` or ``layer.0``.
        names: Names such as ``bert.embeddings.LayerNorm.weight``.
        option: Option that the pattern is from, for messages.

    Raises:
        MisconfigurationException: If no name matches; the message has the nearest.

    """
    names = list(names)
    forms = (pattern, f"{pattern}.*", f"*.{pattern}", f"*.{pattern}.*")
    found = [name for name in names if any(fnmatchcase(name, form) for form in forms)]
    if found:
        return found
    parts = {part for name in names for part in name.split(".") if not part.isdigit()}
    nearest = difflib.get_close_matches(pattern, sorted({*parts, *names}), n=_NEAREST, cutoff=0.0)
    raise MisconfigurationException(
        f"{option}={pattern} was set, but no weight of this model has such a name. HINT: similar names are"
        f" {', '.join(nearest)}."
    )


def _in_layers(model: Any, word: str, count: int) -> list[str]:
    """Names of the weights of the first ``count`` layers."""
    wanted = model.config.num_hidden_layers
    lists = ((name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList))
    prefix = next((name for name, module in lists if len(module) == wanted), None)
    if prefix is None:
        raise MisconfigurationException(
            f"model.freeze={word} was set, but the {wanted} layers of this model share their weights."
            " HINT: freeze all of them (encoder), or train adapters (model.lora.rank)."
        )
    if not 1 <= count <= wanted:
        raise MisconfigurationException(
            f"model.freeze={word} was set, but this model has {wanted} layers. HINT: freeze 1 to {wanted} of them."
        )
    first = tuple(f"{prefix}.{number}." for number in range(count))
    return [name for name, _ in model.named_parameters(remove_duplicate=False) if name.startswith(first)]
