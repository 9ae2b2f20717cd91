# SPDX-License-Identifier: Apache-2.0
"""Metrics of classification and regression, from the outputs for all samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torchmetrics.functional import classification as classified
from torchmetrics.functional import regression as regressed

from lightning_sagemaker.recipes.sequence_classification.labels import MULTI, REGRESSION, LabelScheme


def losses(scheme: LabelScheme, logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Loss of each sample: cross-entropy, mean binary cross-entropy over the classes, or squared error.

    Args:
        scheme: Of the labels.
        logits: ``[samples, outputs]``.
        labels: ``[samples]``, or ``[samples, classes]`` of 0 and 1.
        smoothing: Of the labels; single-label problems only.

    Returns:
        ``[samples]``.

    """
    if scheme.problem == REGRESSION:
        return (logits[:, 0] - labels).square()
    if scheme.problem == MULTI:
        return functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(dim=1)
    return functional.cross_entropy(logits, labels.long(), reduction="none", label_smoothing=smoothing)


def probabilities(scheme: LabelScheme, logits: Tensor) -> Tensor:
    """``[samples, outputs]``; the scores themselves for regression."""
    if scheme.problem == REGRESSION:
        return logits
    return logits.sigmoid() if scheme.problem == MULTI else logits.softmax(dim=1)


def evaluate(scheme: LabelScheme, logits: Tensor, labels: Tensor, threshold: float = 0.5) -> dict[str, float]:
    """All metrics of a problem; of two classes, ``f1`` is that of the second, as GLUE reports it.

    Args:
        scheme: Of the labels.
        logits: ``[samples, outputs]``.
        labels: ``[samples]``, or ``[samples, classes]`` of 0 and 1.
        threshold: Probability from which a class counts, in multi-label problems.

    """
    logits, labels = logits.double(), labels.double()
    values = {"loss": losses(scheme, logits, labels).mean()}
    if scheme.problem == REGRESSION:
        values |= _regression(logits[:, 0], labels)
    elif scheme.problem == MULTI:
        values |= _multi_label(logits.sigmoid(), labels.long(), threshold)
    else:
        values |= _single_label(logits.argmax(dim=1), labels.long(), len(scheme.names))
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


def _multi_label(chances: Tensor, labels: Tensor, threshold: float) -> dict[str, Tensor]:
    predicted, classes = (chances >= threshold).long(), labels.shape[1]
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


def report(scheme: LabelScheme, logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Precision, recall, F1 and number of samples of each class, and the confusion matrix (rows are true classes).

    Of single-label problems only; ``{}`` for others.
    """
    if scheme.problem in (MULTI, REGRESSION):
        return {}
    classes, predicted = len(scheme.names), logits.argmax(dim=1)
    confusion = classified.multiclass_confusion_matrix(predicted, labels.long(), classes).double()
    right = confusion.diagonal()
    precision, recall = right / confusion.sum(0).clamp(min=1), right / confusion.sum(1).clamp(min=1)
    f1 = 2 * right / (confusion.sum(0) + confusion.sum(1)).clamp(min=1)
    rows = zip(scheme.names, precision.tolist(), recall.tolist(), f1.tolist(), confusion.sum(1).tolist(), strict=True)
    per_class = {name: {"precision": p, "recall": r, "f1": f, "samples": int(n)} for name, p, r, f, n in rows}
    return {"classes": per_class, "confusion": confusion.long().tolist()}
