# SPDX-License-Identifier: Apache-2.0
"""Copies of states of loops, schedulers and callbacks, for use within the process."""

from __future__ import annotations

from typing import TypeVar, cast

import torch

T = TypeVar("T")

_SMALL = 1024
"""Maximum elements of a tensor that is copied."""


def plain_copy(value: T) -> T:
    """A copy of plain containers; large tensors, which change by steps only, are shared."""
    return cast(T, _plain_copy(value))


def _plain_copy(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if value.numel() <= _SMALL else value
    if isinstance(value, dict):
        return {key: _plain_copy(entry) for key, entry in value.items()}
    return [_plain_copy(entry) for entry in value] if isinstance(value, list) and type(value) is list else value


def is_small(value: object) -> bool:
    """Whether :func:`plain_copy` copies all tensors in a value."""
    if isinstance(value, dict):
        return all(is_small(entry) for entry in value.values())
    if isinstance(value, list):
        return all(is_small(entry) for entry in value)
    return not isinstance(value, torch.Tensor) or value.numel() <= _SMALL
