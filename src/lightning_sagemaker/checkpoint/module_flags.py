# SPDX-License-Identifier: Apache-2.0
"""Flags of a module that are not in its ``state_dict``, such as those that freeze it, set by hooks of earlier epochs."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from torch import nn

from lightning_sagemaker.checkpoint.module_walk import Children, named_parameters

_TRACKS = "track_running_stats"
"""Attribute of norm layers, which Lightning's finetuning callbacks switch off while a module is frozen."""


def module_flags(children: Children, parameters: Iterable[nn.Parameter]) -> dict[str, list[str]]:
    """Names of frozen parameters, of modules in evaluation mode, and of norm layers that do not track running statistics.

    Args:
        children: :func:`~.module_walk.named_modules` of the module.
        parameters: Parameters of the module.

    """
    trained = all(map(attrgetter("requires_grad"), parameters))
    return {
        "frozen": [] if trained else [name for name, one in named_parameters(children) if not one.requires_grad],
        "evaluating": [name for name, child in children if not child.training],
        "untracked": [name for name, child in children if not _tracks(child)],
    }


def _tracks(module: nn.Module) -> bool:
    """Whether a layer tracks running statistics. Not just ``getattr``, which is ten times slower for a missing attribute."""
    own = vars(module)
    return bool(own[_TRACKS] if _TRACKS in own else getattr(type(module), _TRACKS, True))


def restore_module_flags(module: nn.Module, flags: dict[str, list[str]] | None) -> None:
    """Restore :func:`module_flags`; None, from a checkpoint of an older version, changes nothing."""
    if flags is None:
        return
    frozen, evaluating, untracked = (set(flags[name]) for name in ("frozen", "evaluating", "untracked"))
    for name, parameter in module.named_parameters():
        if parameter.requires_grad is (name in frozen):  # set only if it differs, as not every parameter allows it
            parameter.requires_grad = name not in frozen
    for name, child in module.named_modules():
        child.training = name not in evaluating
        if hasattr(child, _TRACKS):
            child.track_running_stats = name not in untracked
