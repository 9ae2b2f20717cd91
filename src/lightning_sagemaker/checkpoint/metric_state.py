# SPDX-License-Identifier: Apache-2.0
"""What metrics have summed up in the midst of an epoch: torchmetrics of the module, and means that Lightning logs.

torchmetrics leaves its states out of a module's ``state_dict``, and Lightning starts its means over after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_LOGGED = ("value", "cumulated_batch_size")
"""States of the number behind ``self.log(..., on_epoch=True)``; the second is of means."""

_SETTINGS = (
    "fx",
    "name",
    "prog_bar",
    "logger",
    "on_step",
    "on_epoch",
    "enable_graph",
    "add_dataloader_idx",
    "metric_attribute",
)
"""What ``self.log`` was told, by the names of its arguments."""


def metric_states(module: nn.Module, results: Any, evaluated: Any) -> dict[str, Any]:
    """The states of this process, as plain containers and tensors.

    Args:
        module: The LightningModule.
        results: The Trainer's collection of values logged in training.
        evaluated: That of validation. Its metrics have no state to go on with: Lightning resets them after the last hook of
            a validation, in which checkpoints are made.

    """
    over = {id(getattr(value, "value", None)) for value in evaluated.values()}
    own = {
        name: {"count": metric._update_count, "states": _copied(metric.metric_state)}
        for name, metric in _metrics(module)
        if metric._update_count and id(metric) not in over
    }
    logged = {key: _logged_state(metric) for key, metric in results.items() if _is_kept(metric)}
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


def restore_logged(trainer: Any, states: dict[str, Any]) -> None:
    """Set what is logged over an epoch to what :func:`metric_states` gave, as steps had that this Trainer has not run."""
    results = trainer.fit_loop.epoch_loop._results
    for entry in states["logged"].values():
        _log_again(trainer, results, entry)


def merged_metrics(module: nn.Module, ranks: list[dict[str, Any]], rank: int, world_size: int) -> dict[str, Any]:
    """What this rank goes on with of the states of another number of ranks: together they have summed up the same.

    Args:
        module: The LightningModule.
        ranks: What :func:`metric_states` gave on each.
        rank: Rank of this process among ``world_size``.
        world_size: Present number of processes.

    """
    metrics = dict(_metrics(module))
    found: dict[str, dict[str, Any]] = {"metrics": {}, "logged": {}}
    own = ranks[rank::world_size]
    for name in {name for states in own for name in states["metrics"]}:
        if name in metrics:
            found["metrics"][name] = _merged(
                [one["metrics"][name] for one in own if name in one["metrics"]], metrics[name]
            )
    for key in ranks[0]["logged"]:
        entries = [states["logged"][key] for states in own if key in states["logged"]]
        found["logged"][key] = _sum_of(ranks[0]["logged"][key], entries)
    return found


def _merged(entries: list[dict[str, Any]], metric: Any) -> dict[str, Any]:
    """States of one metric of torchmetrics, as it reduces them over ranks; a list is one after the other."""
    states = dict(entries[0]["states"])
    for other in entries[1:]:
        for name, value in other["states"].items():
            reduce = metric._reductions.get(name)
            if isinstance(value, list):
                states[name] = [*states[name], *value]
            elif reduce is not None:
                states[name] = reduce(torch.stack([states[name], value]))
    return {"count": sum(entry["count"] for entry in entries), "states": states}


def _sum_of(like: dict[str, Any], entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Of values that Lightning logs; of nothing if no rank's are this one's, as all ranks must have the same names."""
    if like["values"] is None:
        return like
    reduction = like["settings"]["reduce_fx"]
    if reduction in ("max", "min"):
        empty = torch.full_like(like["values"][0], float("-inf" if reduction == "max" else "inf"))
        value = getattr(torch.stack([empty, *(entry["values"][0] for entry in entries)]), reduction)()
    else:
        value = torch.stack([torch.zeros_like(like["values"][0]), *(entry["values"][0] for entry in entries)]).sum(0)
    count = torch.stack([torch.zeros_like(like["values"][1]), *(entry["values"][1] for entry in entries)]).sum(0)
    return {**like, "values": [value, count], "cache": None}


def _logged_state(metric: Any) -> dict[str, Any]:
    meta = metric.meta
    settings = {name: getattr(meta, name) for name in _SETTINGS}
    settings |= {"reduce_fx": meta.reduce_fx.__name__, "sync_dist": meta.sync.should}
    settings |= {"rank_zero_only": meta.sync.rank_zero_only}
    cache = metric._forward_cache
    cache = cache.detach().cpu().clone() if isinstance(cache, torch.Tensor) else None
    if not metric.is_tensor:  # a metric of torchmetrics, whose states are kept by its own name
        return {"settings": settings, "values": None, "cache": cache}
    values = [torch.as_tensor(getattr(metric, state, 0)).detach().cpu().clone() for state in _LOGGED]
    return {"settings": settings, "values": values, "cache": cache}


def _log_again(trainer: Any, results: Any, entry: dict[str, Any]) -> None:
    settings, module = dict(entry["settings"]), trainer.lightning_module
    is_own = entry["values"] is None  # a metric of the module
    value = dict(module.named_modules()).get(settings["metric_attribute"]) if is_own else entry["values"][0]
    if value is None:
        return
    value = value if is_own else value.to(module.device)
    sync_dist, rank_zero_only = settings.pop("sync_dist"), settings.pop("rank_zero_only")
    settings["reduce_fx"] = getattr(torch, settings["reduce_fx"])
    results.pop(f"{settings['fx']}.{settings['name']}", None)  # of a finder's trial
    results.log(**settings, value=value, batch_size=0)
    metric = results[f"{settings['fx']}.{settings['name']}"]
    # Only now: logging would ask the other ranks.
    kind = type(metric.meta.sync)
    metric.meta.sync = kind(_should=sync_dist, fn=trainer.strategy.reduce, _group=None, rank_zero_only=rank_zero_only)
    if not is_own:
        for name, state in zip(_LOGGED, entry["values"], strict=True):
            setattr(metric, name, state.to(module.device))
    cache = entry["cache"]
    metric._forward_cache = cache.to(module.device) if isinstance(cache, torch.Tensor) else cache


def _metrics(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """By what a metric has, so that torchmetrics need not be imported."""
    for name, child in module.named_modules():
        if hasattr(child, "metric_state") and hasattr(child, "_update_count"):
            yield name, child


def _is_kept(metric: Any) -> bool:
    """Whether it has something in it by now.

    What is reduced over a process group of its own cannot be kept: a group cannot be written down.
    """
    meta = getattr(metric, "meta", None)
    return meta is not None and meta.sync.group is None and not metric.has_reset


def _copied(states: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [item.detach().cpu().clone() for item in value]
        if isinstance(value, list)
        else value.detach().cpu().clone()
        for name, value in states.items()
    }


def _on(value: Any, device: Any) -> Any:
    return [item.to(device) for item in value] if isinstance(value, list) else value.to(device)
