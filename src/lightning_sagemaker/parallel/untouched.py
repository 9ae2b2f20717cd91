# SPDX-License-Identifier: Apache-2.0
"""Runs a module's code and then restores the module's counters, lists, statistics and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeGuard

import torch
from torch import Tensor, nn

_MOST = 1 << 24
"""Maximum elements of a tensor that is restored: larger ones are data or tables, not statistics or counts."""


@contextmanager
def untouched(root: nn.Module) -> Iterator[None]:
    """Context that restores all attributes, buffers and containers of a module and its submodules at its end.

    Parameters, entries of nested containers, and values of tensors with more than 16 million elements are not restored.
    """
    attributes = [(vars(module), dict(vars(module))) for module in root.modules()]
    containers = [(one, one.copy()) for _, before in attributes for one in before.values() if type(one) in (list, dict)]
    buffers = [value for module in root.modules() for value in vars(module)["_buffers"].values()]
    values = [value for _, before in attributes for value in before.values()]
    tensors = [
        (one, one.clone()) for one in {id(one): one for one in (*buffers, *values) if _has_numbers(one)}.values()
    ]
    try:
        yield
    finally:
        for now, before in attributes:
            _restore(now, before)
        for container, content in containers:
            _restore(container, content)
        with torch.no_grad():
            for tensor, numbers in tensors:
                if not torch.equal(tensor, numbers):  # batch_norm's writes do not change the version
                    tensor.copy_(numbers)


def _has_numbers(value: object) -> TypeGuard[Tensor]:
    return type(value) is Tensor and not value.is_meta and not value.is_inference() and value.numel() <= _MOST


def _restore(container: object, content: object) -> None:
    if isinstance(container, dict) and isinstance(content, dict):
        container.clear()
        container.update(content)
    elif isinstance(container, list) and isinstance(content, list):
        container[:] = content
