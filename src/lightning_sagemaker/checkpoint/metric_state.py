# SPDX-License-Identifier: Apache-2.0
"""What metrics have summed up in the midst of an epoch: torchmetrics of the module, and means that Lightning logs.

torchmetrics leaves its states out of a module's ``state_dict``, and Lightning begins its means anew after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_LOGGED = ("value", "cumulated_batch_size")
"""States of the metric behind ``self.log(..., on_epoch=True)``; the second is of means."""


def metric_states(module: nn.Module, results: Any) -> dict[str, Any]:
    """The states of this process, as plain containers and tensors.

    Args:
        module: The LightningModule.
        results: The Trainer's collection of logged values; None outside of a loop.

    """
    own = {
        name: {"count": metric._update_count, "states": _copied(metric.metric_state)}
        for name, metric in _metrics(module)
        if metric._update_count
    }
    logged = {
        key: [torch.as_tensor(getattr(metric, state, 0)).detach().cpu().clone() for state in _LOGGED]
        for key, metric in (results or {}).items()
        if _is_logged(metric)
    }
    return {"metrics": own, "logged": logged}


def restore_metrics(module: nn.Module, states: dict[str, Any]) -> None:
    """Set the module's metrics to what :func:`metric_states` gave; those that are not there stay as they are."""
    metrics = dict(_metrics(module))
    for name, entry in states["metrics"].items():
        metric = metrics.get(name)
        if metric is None:
            continue
        for state, value in entry["states"].items():
            setattr(metric, state, _on(value, metric.device))
        metric._update_count, metric._computed = entry["count"], None


def restore_logged(results: Any, states: dict[str, Any]) -> None:
    """Join earlier values with what is logged, after the first step has made the objects that hold it."""
    for key, (value, count) in states["logged"].items():
        metric = (results or {}).get(key)
        if metric is None or not _is_logged(metric):
            continue
        meta, earlier = metric.meta, value.to(metric.value.device)
        if meta.is_max_reduction or meta.is_min_reduction:
            metric.value = (torch.maximum if meta.is_max_reduction else torch.minimum)(metric.value, earlier)
        else:
            metric.value = metric.value + earlier
        if meta.is_mean_reduction:
            metric.cumulated_batch_size = metric.cumulated_batch_size + count.to(metric.value.device)


def _metrics(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """By what a metric has, so that torchmetrics need not be imported."""
    for name, child in module.named_modules():
        if hasattr(child, "metric_state") and hasattr(child, "_update_count"):
            yield name, child


def _is_logged(metric: Any) -> bool:
    """Whether it is a number that Lightning reduces over the epoch itself."""
    meta = getattr(metric, "meta", None)
    if meta is None or not meta.on_epoch or not metric.is_tensor:
        return False
    return bool(meta.is_mean_reduction or meta.is_sum_reduction or meta.is_max_reduction or meta.is_min_reduction)


def _copied(states: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [item.detach().cpu().clone() for item in value]
        if isinstance(value, list)
        else value.detach().cpu().clone()
        for name, value in states.items()
    }


def _on(value: Any, device: Any) -> Any:
    return [item.to(device) for item in value] if isinstance(value, list) else value.to(device)
