# SPDX-License-Identifier: Apache-2.0
"""Turns the model's outputs into probabilities, and probabilities into classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor

from lightning_sagemaker.recipes.sequence_classification.labels import MULTI, REGRESSION, SINGLE, LabelScheme

AUTO = "auto"
"""Value of an option: use the result of the last validation."""
CALIBRATION = "calibration"
"""Entry of the model's configuration with the last validation's result of :func:`~calibration.calibrate`."""


@dataclass(frozen=True)
class Decision:
    """How outputs become probabilities and classes.

    Args:
        temperature: Divisor of the outputs before softmax or sigmoid.
        threshold: Probability from which a class is predicted in multi-label problems, and the second class in binary
            ones.

    """

    temperature: float = 1.0
    threshold: float = 0.5

    @classmethod
    def of(cls, temperature: float | str, threshold: float | str, found: Mapping[str, Any] | None) -> Decision:
        """The decision for two options.

        Args:
            temperature: A number, or ``auto``.
            threshold: A number for the probabilities after the temperature, or ``auto``.
            found: Results of the last validation; their threshold is for probabilities without a temperature.

        """
        found = found or {}
        heat = float(found.get("temperature", 1.0)) if temperature == AUTO else float(temperature)
        if threshold != AUTO:
            return cls(heat, float(threshold))
        raw = torch.tensor(float(found.get("threshold", 0.5)), dtype=torch.float64)
        return cls(heat, float((raw.logit() / heat).sigmoid()))

    def probabilities(self, scheme: LabelScheme, outputs: Tensor) -> Tensor:
        """``[samples, outputs]``; the scores themselves for regression."""
        if scheme.problem == REGRESSION:
            return outputs
        scaled = outputs / self.temperature
        return scaled.sigmoid() if scheme.problem == MULTI else scaled.softmax(dim=1)

    def classes(self, scheme: LabelScheme, chances: Tensor) -> Tensor:
        """The class of each sample, or 0 and 1 for each class; not of regression.

        Args:
            scheme: Scheme of the labels.
            chances: ``[samples, classes]``, from :meth:`probabilities`.

        Returns:
            ``[samples]``, or ``[samples, classes]`` in multi-label problems.

        """
        if scheme.problem == MULTI:
            return (chances >= self.threshold).long()
        if has_threshold(scheme) and self.threshold != 0.5:
            return (chances[:, 1] >= self.threshold).long()
        return chances.argmax(dim=1)


AS_IS = Decision()
"""The decision of users of the exported model: temperature 1, threshold 0.5."""


def has_threshold(scheme: LabelScheme) -> bool:
    """Whether a threshold decides on classes: in binary and in multi-label problems."""
    return scheme.problem == MULTI or (scheme.problem == SINGLE and len(scheme.names) == 2)


def check_option(name: str, value: float | str, highest: float) -> None:
    """Refuse a value that is neither ``auto`` nor a number between 0 and ``highest``.

    Raises:
        MisconfigurationException: If ``value`` is neither.

    """
    if value != AUTO and (isinstance(value, str) or not 0 < value < highest):
        raise MisconfigurationException(
            f"model.{name}={value!r} was set. HINT: use {AUTO}, or a number between 0 and {highest:g}."
        )
