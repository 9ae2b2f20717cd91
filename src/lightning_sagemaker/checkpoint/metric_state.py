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
"""States of the number behind ``self.log(..., on_epoch=True)``; the second is of means."""

_SETTINGS = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "add_dataloader_idx", "metric_attribute")
"""What ``self.log`` was told, by the names of its arguments."""


def metric_states(module: nn.Module, results: Any) -> dict[str, Any]:
    """The states of this process, as plain containers and tensors.

    Args:
        module: The LightningModule.
        results: The Trainer's collection of values logged in training.

    """
    own = {
        name: {"count": metric._update_count, "states": _copied(metric.metric_state)}
        for name, metric in _metrics(module)
        if metric._update_count
    }
    logged = {key: _logged_state(metric) for key, metric in results.items() if _is_summed(metric)}
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


def restore_logged(trainer: Any, states: dict[str, Any]) -> list[str]:
    """Join earlier values with what is logged, after the first step, which resets what it logs, or without one.

    Returns:
        The names of values that were not there.

    """
    results, made = trainer.fit_loop.epoch_loop._results, []
    for key, entry in states["logged"].items():
        if key not in results:
            made.append(key)
            _log_again(trainer, results, entry)
        elif _is_summed(results[key]) and results[key].is_tensor:
            _join(results[key], entry)
    return made


def _logged_state(metric: Any) -> dict[str, Any]:
    meta = metric.meta
    settings = {name: getattr(meta, name) for name in _SETTINGS}
    settings |= {"reduce_fx": meta.reduce_fx.__name__, "sync_dist": meta.sync.should}
    settings |= {"rank_zero_only": meta.sync.rank_zero_only}
    if not metric.is_tensor:  # a metric of torchmetrics, whose states are kept by its own name
        return {"settings": settings, "values": None}
    values = [torch.as_tensor(getattr(metric, state, 0)).detach().cpu().clone() for state in _LOGGED]
    return {"settings": settings, "values": values}


def _join(metric: Any, entry: dict[str, Any]) -> None:
    meta, (value, count) = metric.meta, (state.to(metric.value.device) for state in entry["values"])
    if meta.is_max_reduction or meta.is_min_reduction:
        metric.value = (torch.maximum if meta.is_max_reduction else torch.minimum)(metric.value, value)
    else:
        metric.value = metric.value + value
    if meta.is_mean_reduction:
        metric.cumulated_batch_size = metric.cumulated_batch_size + count


def _log_again(trainer: Any, results: Any, entry: dict[str, Any]) -> None:
    """As the steps did that a Trainer which begins with the epoch's end has not run."""
    settings, module = entry["settings"], trainer.lightning_module
    value = dict(module.named_modules()).get(settings["metric_attribute"])
    if entry["values"] is not None:
        value = entry["values"][0].to(module.device)
    elif value is None:
        return
    reduction = getattr(torch, settings["reduce_fx"])
    results.log(**{**settings, "reduce_fx": reduction}, value=value, batch_size=0, sync_dist_fn=trainer.strategy.reduce)
    if entry["values"] is not None:
        for name, state in zip(_LOGGED, entry["values"], strict=True):
            setattr(results[f"{settings['fx']}.{settings['name']}"], name, state.to(module.device))


def _metrics(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """By what a metric has, so that torchmetrics need not be imported."""
    for name, child in module.named_modules():
        if hasattr(child, "metric_state") and hasattr(child, "_update_count"):
            yield name, child


def _is_summed(metric: Any) -> bool:
    """Whether it is logged at the end of the epoch, and by now has something in it.

    What is reduced over a process group of its own cannot be kept: a group cannot be written down.
    """
    meta = getattr(metric, "meta", None)
    return meta is not None and meta.on_epoch and meta.sync.group is None and not metric.has_reset


def _copied(states: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [item.detach().cpu().clone() for item in value]
        if isinstance(value, list)
        else value.detach().cpu().clone()
        for name, value in states.items()
    }


def _on(value: Any, device: Any) -> Any:
    return [item.to(device) for item in value] if isinstance(value, list) else value.to(device)
