# SPDX-License-Identifier: Apache-2.0
"""Values of a metric other than its states: the extrema of ``MinMaxMetric``, the count of ``Running``."""

from __future__ import annotations

import inspect
from functools import cache

import torch
from torchmetrics import Metric, MetricTracker, SumMetric
from torchmetrics.wrappers.abstract import WrapperMetric

from lightning_sagemaker.checkpoint.plain_values import is_sendable
from lightning_sagemaker.checkpoint.records import package_of
from lightning_sagemaker.checkpoint.stored_values import NotStored, is_large, loaded, stored


def own_values(metric: Metric) -> dict[str, object]:
    """Numbers and tensors of a wrapper, or of a script's own metric, that are neither states nor settings.

    Returns:
        Copies, in a form that a checkpoint can hold.

    """
    settings, found = _settings(type(metric)), dict[str, object]()
    if settings is None:
        return found
    others = settings | metric.metric_state.keys()
    for name, value in vars(metric).items():
        if name not in others and not isinstance(value, str) and is_sendable(value):
            try:
                entry = stored(value)
            except NotStored:
                continue
            if not is_large(entry):
                found[name] = entry
    return found


def set_values(metric: Metric, values: dict[str, object]) -> None:
    """Restore the result of :func:`own_values`."""
    for name, value in values.items():
        if name in vars(metric):
            setattr(metric, name, loaded(value, torch.device(metric.device)))


def track(tracker: MetricTracker, steps: int) -> None:
    """Set a tracker's number of steps to that of the checkpoint, whatever hooks of the start have added."""
    while tracker.n_steps > steps:
        tracker._modules.popitem()
    while tracker.n_steps < steps:
        tracker.increment()


@cache
def _settings(kind: type[Metric]) -> frozenset[str] | None:
    """Names that are torchmetrics' own or constructor arguments, which may differ now; None to save no values."""
    if not issubclass(kind, WrapperMetric) and package_of(kind) == "torchmetrics":
        return None
    constructors = [vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base)]
    arguments = {name for one in constructors for name in inspect.signature(one).parameters}
    return frozenset({*vars(SumMetric()), *arguments})
