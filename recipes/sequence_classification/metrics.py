# SPDX-License-Identifier: Apache-2.0
"""Metrics of classification and regression, from the outputs for all samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torchmetrics.functional import classification as classified
from torchmetrics.functional import regression as regressed

from lightning_sagemaker.recipes.sequence_classification.calibration import reliability
from lightning_sagemaker.recipes.sequence_classification.decisions import AS_IS, Decision
from lightning_sagemaker.recipes.sequence_classification.labels import MULTI, REGRESSION, LabelScheme

_PAIRS, _EXAMPLES = 15, 3
"""Maximum number of the most confused pairs of classes, and of samples of each."""


def losses(scheme: LabelScheme, logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Loss of each sample: cross-entropy, mean binary cross-entropy over the classes, or squared error.

    Args:
        scheme: Scheme of the labels.
        logits: ``[samples, outputs]``.
        labels: ``[samples]``, or ``[samples, classes]`` of 0 and 1.
        smoothing: Smoothing of the labels; single-label problems only.

    Returns:
        Loss of each sample, ``[samples]``.

    """
    if scheme.problem == REGRESSION:
        return (logits[:, 0] - labels).square()
    if scheme.problem == MULTI:
        return functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(dim=1)
    return functional.cross_entropy(logits, labels.long(), reduction="none", label_smoothing=smoothing)


def evaluate(scheme: LabelScheme, logits: Tensor, labels: Tensor, decision: Decision = AS_IS) -> dict[str, float]:
    """All metrics of a problem; of two classes, ``f1`` is that of the second, as GLUE reports it.

    Args:
        scheme: Scheme of the labels.
        logits: ``[samples, outputs]``.
        labels: ``[samples]``, or ``[samples, classes]`` of 0 and 1.
        decision: How outputs become classes; the loss is that of the unscaled outputs.

    """
    logits, labels = logits.double(), labels.double()
    values = {"loss": losses(scheme, logits, labels).mean()}
    if scheme.problem == REGRESSION:
        values |= _regression(logits[:, 0], labels)
    else:
        predicted = decision.classes(scheme, decision.probabilities(scheme, logits))
        score = _multi_label if scheme.problem == MULTI else _single_label
        values |= score(predicted, labels.long(), len(scheme.names))
    return {name: float(value) for name, value in values.items()}


def _single_label(predicted: Tensor, labels: Tensor, classes: int) -> dict[str, Tensor]:
    macro = classified.multiclass_f1_score(predicted, labels, classes, average="macro")
    each = classified.multiclass_f1_score(predicted, labels, classes, average="none")
    return {
        "accuracy": (predicted == labels).double().mean(),
        "f1": each[1] if classes == 2 else macro,
        "f1_macro": macro,
        "matthews_correlation": classified.multiclass_matthews_corrcoef(predicted, labels, classes),
    }


def _multi_label(predicted: Tensor, labels: Tensor, classes: int) -> dict[str, Tensor]:
    return {
        "accuracy": (predicted == labels).all(dim=1).double().mean(),
        "f1": classified.multilabel_f1_score(predicted, labels, classes, average="micro"),
        "f1_macro": classified.multilabel_f1_score(predicted, labels, classes, average="macro"),
    }


def _regression(scores: Tensor, labels: Tensor) -> dict[str, Tensor]:
    values = {
        "mse": (scores - labels).square().mean(),
        "mae": (scores - labels).abs().mean(),
        "pearson": torch.tensor(float("nan")),
        "spearman": torch.tensor(float("nan")),
    }
    if len(scores) > 1:
        values["pearson"] = regressed.pearson_corrcoef(scores, labels)
        values["spearman"] = regressed.spearman_corrcoef(scores, labels)
    return values


def report(
    scheme: LabelScheme, logits: Tensor, labels: Tensor, decision: Decision, found: Mapping[str, float]
) -> dict[str, Any]:
    """Details of an evaluation in addition to its metrics; ``{}`` for regression.

    Args:
        scheme: Scheme of the labels.
        logits: ``[samples, outputs]``.
        labels: ``[samples]``, or ``[samples, classes]`` of 0 and 1.
        decision: How outputs become classes.
        found: Result of :func:`~calibration.calibrate` in the last validation.

    Returns:
        ``calibration``; for single-label problems also ``classes`` (precision, recall, F1 and number of samples of
        each), ``confusion`` (rows are true classes) and ``most_confused``.

    """
    if scheme.problem == REGRESSION:
        return {}
    logits, labels = logits.double(), labels.double()
    chances = decision.probabilities(scheme, logits)
    content: dict[str, Any] = {}
    if scheme.problem != MULTI:
        predicted = decision.classes(scheme, chances)
        confusion = classified.multiclass_confusion_matrix(predicted, labels.long(), len(scheme.names))
        content = {
            "classes": _classes(scheme, confusion.double()),
            "confusion": confusion.tolist(),
            "most_confused": _most_confused(scheme, confusion, predicted, labels.long()),
        }
    scaled = Decision(found.get("temperature", 1.0)).probabilities(scheme, logits)
    content["calibration"] = {
        **reliability(scheme, AS_IS.probabilities(scheme, logits), labels),
        **found,
        "with_temperature": reliability(scheme, scaled, labels),
        "used": asdict(decision),
    }
    return content


def _classes(scheme: LabelScheme, confusion: Tensor) -> dict[str, Any]:
    right = confusion.diagonal()
    precision, recall = right / confusion.sum(0).clamp(min=1), right / confusion.sum(1).clamp(min=1)
    f1 = 2 * right / (confusion.sum(0) + confusion.sum(1)).clamp(min=1)
    rows = zip(scheme.names, precision.tolist(), recall.tolist(), f1.tolist(), confusion.sum(1).tolist(), strict=True)
    return {name: {"precision": p, "recall": r, "f1": f, "samples": int(n)} for name, p, r, f, n in rows}


def _most_confused(scheme: LabelScheme, confusion: Tensor, predicted: Tensor, labels: Tensor) -> list[dict[str, Any]]:
    """The most frequent mistakes: true and predicted class, count, share, and positions of some such samples."""
    wrong = confusion.clone().fill_diagonal_(0)
    counts, places = wrong.flatten().sort(descending=True, stable=True)
    pairs = []
    for count, place in zip(counts.tolist()[:_PAIRS], places.tolist(), strict=False):
        if count:
            true, other = divmod(place, len(scheme.names))
            samples = ((labels == true) & (predicted == other)).nonzero()[:_EXAMPLES, 0].tolist()
            share = count / int(confusion[true].sum())
            pair = {"true": scheme.names[true], "predicted": scheme.names[other]}
            pairs.append({**pair, "count": count, "share": share, "samples": samples})
    return pairs
