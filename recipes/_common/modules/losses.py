# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy over many classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

IGNORED = -100
"""Label of rows to ignore, as in ``torch.nn.functional.cross_entropy``."""

_CHUNK_BYTES = 1 << 22
"""Bytes of logits processed together, so that they stay in the CPU's cache between the passes over them."""


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of each row, and whether its highest score is that of the label; may overwrite ``logits``.

    On a CPU, the gradient overwrites the logits while they are in its cache, instead of allocating two more tensors of
    that size: for 304 rows of 30 000 classes 15 ms instead of 60 (two cores, forward and backward).

    Args:
        logits: ``[rows, classes]`` in float32; must not be used afterwards.
        labels: ``[rows]``; rows with :data:`IGNORED` have loss 0 and count as wrong.

    Returns:
        Losses ``[rows]`` in float32, and correctness ``[rows]`` in bool.

    """
    if logits.device.type != "cpu":
        losses = functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
        return losses, logits.detach().argmax(dim=1) == labels
    result: tuple[Tensor, Tensor] = _CrossEntropy.apply(logits, labels)  # type: ignore[no-untyped-call]
    return result


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        counted = labels != IGNORED
        chosen = torch.where(counted, labels, 0)[:, None]
        losses, right = torch.empty_like(logits[:, 0]), torch.empty_like(counted)
        rows = max(1, _CHUNK_BYTES // (4 * logits.shape[1]))
        for begin in range(0, len(logits), rows):
            part = slice(begin, begin + rows)
            losses[part], right[part] = _turn_into_gradient(logits.data[part], chosen[part])
        context.gradient, context.counted = logits.data, counted
        context.mark_non_differentiable(right)
        return losses * counted, right & counted

    @staticmethod
    def backward(context: Any, upstream: Tensor, _: Any) -> tuple[Tensor, None]:
        gradient, context.gradient = context.gradient, None  # a second time would be wrong, and fails
        return gradient.mul_((upstream * context.counted)[:, None]), None


def _turn_into_gradient(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Losses, and whether each row is right; overwrites ``scores`` by their gradient: softmax, minus 1 at the label."""
    own, highest = scores.gather(1, labels), scores.amax(dim=1, keepdim=True)
    total = scores.sub_(highest).exp_().sum(dim=1, keepdim=True)
    scores.div_(total)
    scores.scatter_add_(1, labels, scores.new_full(labels.shape, -1))
    return (total.log() + highest - own)[:, 0], (own == highest)[:, 0]
