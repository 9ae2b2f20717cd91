# SPDX-License-Identifier: Apache-2.0
"""Calibration of probabilities: reliability, temperature scaling, and the threshold with the best F1."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lightning_sagemaker.recipes.sequence_classification.decisions import AS_IS, has_threshold
from lightning_sagemaker.recipes.sequence_classification.labels import MULTI, LabelScheme

BINS = 15
"""Bins of the reliability diagram, as in Guo et al., 2017, "On Calibration of Modern Neural Networks"."""

_TEMPERATURES = (0.05, 20.0)
"""Bounds of the fit: if all samples are right, the best temperature is 0."""
_HALVINGS = 30


def calibrate(scheme: LabelScheme, logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Fit ``temperature`` and, in binary and multi-label problems, ``threshold`` with its ``threshold_f1``.

    Args:
        scheme: Scheme of the labels; not of regression.
        logits: ``[samples, outputs]``.
        labels: ``[samples]``, or ``[samples, classes]`` of 0 and 1.

    """
    logits, labels = logits.double(), labels.double()
    found = {"temperature": fit_temperature(logits, labels)}
    if has_threshold(scheme):
        chances = AS_IS.probabilities(scheme, logits)
        if scheme.problem == MULTI:
            found["threshold"], found["threshold_f1"] = best_threshold(chances.flatten(), labels.flatten() > 0.5)
        else:
            found["threshold"], found["threshold_f1"] = best_threshold(chances[:, 1], labels == 1)
    return found


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature, which divides the logits, with the lowest cross-entropy, which is convex in its inverse.

    Args:
        logits: ``[samples, outputs]``.
        labels: ``[samples]`` class numbers, or ``[samples, outputs]`` of 0 and 1.

    """
    low, high = (math.log(1 / bound) for bound in reversed(_TEMPERATURES))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _slope(logits, labels, math.exp(middle)) < 0:
            low = middle
        else:
            high = middle
    return math.exp(-(low + high) / 2)


def _slope(logits: Tensor, labels: Tensor, inverse: float) -> float:
    """Derivative of the mean cross-entropy with respect to the inverse temperature."""
    if labels.ndim == 2:
        return float((((logits * inverse).sigmoid() - labels) * logits).mean())
    expected = ((logits * inverse).softmax(dim=1) * logits).sum(dim=1)
    return float((expected - logits.gather(1, labels.long()[:, None])[:, 0]).mean())


def best_threshold(chances: Tensor, is_positive: Tensor) -> tuple[float, float]:
    """The threshold with the highest F1, in the middle between the neighboring probabilities, and that F1.

    Args:
        chances: ``[decisions]``, probability of the positive class.
        is_positive: ``[decisions]``, whether the positive class is right.

    """
    total = int(is_positive.sum())
    if not total:
        return 0.5, 0.0
    chances, order = chances.sort(descending=True, stable=True)
    right = is_positive[order].double().cumsum(0)
    f1 = 2 * right / (torch.arange(1, len(right) + 1) + total)
    # Equal probabilities are decided alike: a threshold can only follow the last of them.
    is_last = torch.cat([chances[1:] < chances[:-1], torch.ones(1, dtype=torch.bool)])
    best = int(torch.where(is_last, f1, -1.0).argmax())
    below = float(chances[best + 1]) if best + 1 < len(chances) else 0.0
    return (float(chances[best]) + below) / 2, float(f1[best])


def reliability(scheme: LabelScheme, chances: Tensor, labels: Tensor) -> dict[str, Any]:
    """Accuracy by confidence, in bins of equal width, and the mean difference of the two.

    Args:
        scheme: Scheme of the labels; not of regression.
        chances: ``[samples, classes]``.
        labels: ``[samples]``, or ``[samples, classes]`` of 0 and 1; then each class counts as a binary decision.

    Returns:
        ``ece``, the expected calibration error, and ``bins`` from 0 to 1 with ``count``, ``confidence`` (the mean
        probability) and ``accuracy``; the latter two are ``None`` in an empty bin.

    """
    if scheme.problem == MULTI:
        confidence, is_right = chances.flatten(), labels.flatten() > 0.5
    else:
        confidence, predicted = chances.max(dim=1)
        is_right = predicted == labels
    confidence, right_or_not = confidence.double(), is_right.double()
    bins = ((confidence * BINS).ceil().long() - 1).clamp(0, BINS - 1)  # (low, high], but 0 is in the first
    counts = torch.bincount(bins, minlength=BINS).double()
    sure = torch.bincount(bins, confidence, BINS)
    right = torch.bincount(bins, right_or_not, BINS)
    rows = [
        {"count": int(n), "confidence": s / n if n else None, "accuracy": r / n if n else None}
        for n, s, r in zip(counts.tolist(), sure.tolist(), right.tolist(), strict=True)
    ]
    return {"ece": float((sure - right).abs().sum() / max(1, len(confidence))), "bins": rows}
