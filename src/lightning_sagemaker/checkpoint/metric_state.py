# SPDX-License-Identifier: Apache-2.0
"""Metric states within an epoch: torchmetrics of the module, and means that Lightning logs.

torchmetrics excludes its states from a module's ``state_dict``, and Lightning resets its means after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, cast

import torch

from lightning_sagemaker.checkpoint.metric_places import metrics_of
from lightning_sagemaker.checkpoint.metric_values import own_values, set_values, track
from lightning_sagemaker.checkpoint.module_walk import Children

if TYPE_CHECKING:
    from torch import Tensor
    from torchmetrics import Metric

    from lightning_sagemaker._types import ResultCollection, ResultMetric, Trainer


class MetricEntry(TypedDict):
    """A metric of torchmetrics: number of updates, states, and other values."""

    count: int
    states: dict[str, list[Tensor] | Tensor]
    own: dict[str, object]


class LoggedEntry(TypedDict):
    """A logged name: the arguments of ``self.log``, the accumulated values, and the last step's value."""

    settings: dict[str, Any]
    values: list[Tensor] | None
    cache: Tensor | None


class MetricStates(TypedDict):
    """The result of :func:`metric_states`."""

    metrics: dict[str, MetricEntry]
    logged: dict[str, LoggedEntry]
    trackers: dict[str, int]


_LOGGED = ("value", "cumulated_batch_size")
"""States accumulated by ``self.log(..., on_epoch=True)``; the second is for means."""

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
"""Arguments of ``self.log``, by name."""


def metric_states(trainer: Trainer, children: Children) -> MetricStates:
    """The states of this process, as plain containers and tensors.

    Metrics that are logged in validation are not included: Lightning resets them after the last hook of a
    validation, in which checkpoints are saved.

    Args:
        trainer: Trainer whose module and callbacks have the metrics.
        children: :func:`~.module_walk.named_modules` of the module.

    """
    loop, held = trainer.fit_loop.epoch_loop, metrics_of(trainer, children)
    over = {id(getattr(value, "value", None)) for value in loop.val_loop._results.values()}
    entries = entries_of({name: metric for name, metric in held.metrics.items() if id(metric) not in over})
    own = {name: entry for name, entry in entries.items() if entry["count"] or entry["own"]}
    logged = {key: _logged_state(metric) for key, metric in loop._results.items() if _is_kept(metric)}
    return {"metrics": own, "logged": logged, "trackers": {key: one.n_steps for key, one in held.trackers.items()}}


def entries_of(metrics: Mapping[str, Metric]) -> dict[str, MetricEntry]:
    """The states of metrics."""
    return {name: _entry(metric) for name, metric in metrics.items()}


def _entry(metric: Metric) -> MetricEntry:
    count, own = metric._update_count, own_values(metric)  # wrappers do not count updates
    return {"count": count, "states": _copied(metric.metric_state) if count or own else {}, "own": own}


def restore_metrics(trainer: Trainer, states: MetricStates) -> None:
    """Restore :func:`metric_states`; metrics that are not in it are unchanged."""
    restore_entries(_tracked(trainer, states), states["metrics"])


def restore_entries(metrics: Mapping[str, Metric], entries: Mapping[str, MetricEntry]) -> None:
    """Restore :func:`entries_of`; metrics that are not in it are unchanged."""
    for name, entry in entries.items():
        metric = metrics.get(name)
        if metric is None:
            continue
        for state, value in entry["states"].items():
            setattr(metric, state, _on(value, metric.device))
        metric._update_count, metric._computed = entry["count"], None
        set_values(metric, entry.get("own", {}))


def _tracked(trainer: Trainer, states: MetricStates) -> dict[str, Metric]:
    """All metrics, after trackers were extended to their earlier number of steps."""
    trackers = metrics_of(trainer).trackers
    for name, steps in states.get("trackers", {}).items():
        if name in trackers:
            track(trackers[name], steps)
    return metrics_of(trainer).metrics


def restore_logged(trainer: Trainer, states: MetricStates) -> None:
    """Restore values logged over an epoch from :func:`metric_states`."""
    results = trainer.fit_loop.epoch_loop._results
    for key in [key for key in results if key.startswith("on_train_start.") and key not in states["logged"]]:
        del results[key]  # of this start's hook, which an uninterrupted run does not call in this epoch
    for entry in states["logged"].values():
        _log_again(trainer, results, entry)


def merged_metrics(trainer: Trainer, ranks: list[MetricStates], rank: int, world_size: int) -> MetricStates:
    """This rank's share of the states of another number of ranks; the totals are the same.

    Args:
        trainer: Trainer with the metrics.
        ranks: The :func:`metric_states` of each earlier rank.
        rank: Rank of this process among ``world_size``.
        world_size: Current number of processes.

    """
    metrics, found, own = _tracked(trainer, ranks[0]), without_sums(ranks[0]), ranks[rank::world_size]
    found["metrics"] |= merged_entries(metrics, [one["metrics"] for one in own])
    for key in ranks[0]["logged"]:
        logged = [states["logged"][key] for states in own if key in states["logged"]]
        found["logged"][key] = _sum_of(ranks[0]["logged"][key], logged)
    return found


def merged_entries(metrics: Mapping[str, Metric], ranks: list[dict[str, MetricEntry]]) -> dict[str, MetricEntry]:
    """Merge :func:`entries_of` several ranks into one rank's; metrics that no longer exist are left out."""
    names = {name: None for entries in ranks for name in entries if name in metrics}
    return {name: _merged([one[name] for one in ranks if name in one], metrics[name]) for name in names}


def of_lost_rank(states: MetricStates) -> MetricStates:
    """States for a replacement of a lost rank, whose sums are lost, from the sender's, which has the same names.

    Values that are reduced over ranks start empty, so that nothing counts twice. For values that each rank logs itself, the
    sender's sums are used: the mean of no values, nan, would trigger early stopping if no batch followed in the epoch.
    """
    found, logged = without_sums(states), states["logged"]
    found["logged"] |= {key: one for key, one in logged.items() if not one["settings"]["sync_dist"]}
    return found


def without_sums(states: MetricStates) -> MetricStates:
    """The states without accumulated values; names and trackers are the same on all ranks."""
    kept = {name: entry for name, entry in states["metrics"].items() if entry.get("own")}
    return {
        "metrics": {name: {"count": 0, "states": {}, "own": entry["own"]} for name, entry in kept.items()},
        "logged": {key: _sum_of(entry, []) for key, entry in states["logged"].items()},
        "trackers": states.get("trackers", {}),
    }


def _merged(entries: list[MetricEntry], metric: Metric) -> MetricEntry:
    """Merge the states of one metric as torchmetrics reduces them over ranks; lists are concatenated."""
    states = dict(entries[0]["states"])
    for other in entries[1:]:
        for name, value in other["states"].items():
            reduce, before = metric._reductions.get(name), states[name]
            if isinstance(value, list):
                states[name] = [*before, *value]
            elif callable(reduce) and isinstance(before, torch.Tensor):
                states[name] = reduce(torch.stack([before, value]))
    return {**entries[0], "count": sum(entry["count"] for entry in entries), "states": states}


def _sum_of(like: LoggedEntry, entries: list[LoggedEntry]) -> LoggedEntry:
    """Sum of logged values; an empty entry if only other ranks have the name, as all must have the same names."""
    if like["values"] is None:
        return like
    reduction, empty = like["settings"]["reduce_fx"], [torch.zeros_like(value) for value in like["values"]]
    values = [entry["values"] for entry in entries if entry["values"] is not None]
    if reduction in ("max", "min"):
        least = torch.full_like(empty[0], float("-inf" if reduction == "max" else "inf"))
        found = torch.stack([least, *(value for value, _ in values)])
        value = found.max() if reduction == "max" else found.min()
    else:
        value = torch.stack([empty[0], *(value for value, _ in values)]).sum(0)
    count = torch.stack([empty[1], *(count for _, count in values)]).sum(0)
    return {**like, "values": [value, count], "cache": None}


def _logged_state(metric: ResultMetric) -> LoggedEntry:
    meta = metric.meta
    settings = {name: getattr(meta, name) for name in _SETTINGS}
    settings |= {"reduce_fx": meta.reduce_fx.__name__, "sync_dist": meta.sync.should}
    settings |= {"rank_zero_only": meta.sync.rank_zero_only}
    cache = metric._forward_cache
    cache = cache.detach().cpu().clone() if isinstance(cache, torch.Tensor) else None
    if not metric.is_tensor:  # a torchmetrics metric, whose states are stored under its own name
        return {"settings": settings, "values": None, "cache": cache}
    values = [torch.as_tensor(getattr(metric, state, 0)).detach().cpu().clone() for state in _LOGGED]
    return {"settings": settings, "values": values, "cache": cache}


def _log_again(trainer: Trainer, results: ResultCollection, entry: LoggedEntry) -> None:
    settings, module, values = dict(entry["settings"]), trainer.lightning_module, entry["values"]
    if values is None:  # a metric of the module
        value = dict(module.named_modules()).get(settings["metric_attribute"])
        if value is None:
            return
    else:
        value = values[0].to(module.device)
    sync_dist, rank_zero_only = settings.pop("sync_dist"), settings.pop("rank_zero_only")
    settings["reduce_fx"] = getattr(torch, settings["reduce_fx"])
    results.pop(f"{settings['fx']}.{settings['name']}", None)  # left by a finder's trial
    results.log(**settings, value=value, batch_size=0)
    metric = results[f"{settings['fx']}.{settings['name']}"]
    # Set only now, as logging would otherwise communicate with other ranks.
    kind = type(metric.meta.sync)
    metric.meta.sync = kind(_should=sync_dist, fn=trainer.strategy.reduce, _group=None, rank_zero_only=rank_zero_only)
    if values is not None:
        for name, state in zip(_LOGGED, values, strict=True):
            setattr(metric, name, state.to(module.device))
    cache = entry["cache"]
    metric._forward_cache = cache.to(module.device) if isinstance(cache, torch.Tensor) else cache
    _take_options(metric)


def _take_options(metric: ResultMetric) -> None:
    """Let the next ``self.log`` set the options: this start may have others, as with ``sync_dist=trainer.world_size > 1``.

    Lightning compares them with those of the value that it has, and would raise an error.
    """
    kind = type(metric.meta)

    def is_same(_: object, given: object) -> bool:
        restored = metric.meta
        restored.__class__ = kind
        if getattr(given, "reduce_fx", None) is not restored.reduce_fx:  # what was accumulated means something else
            return False
        vars(restored).update(vars(given))
        return True

    metric.meta.__class__ = type(kind.__name__, (kind,), {"__eq__": is_same})


def metrics_in(children: Children) -> Iterator[tuple[str, Metric]]:
    """The metrics among modules, detected by attributes, so that torchmetrics need not be imported."""
    kinds = {kind for kind in {type(child) for _, child in children} if hasattr(kind, "metric_state")}
    for name, child in children:
        if type(child) in kinds and hasattr(child, "_update_count"):
            yield name, cast("Metric", child)


def _is_kept(metric: ResultMetric) -> bool:
    """Whether a logged value was updated and can be saved.

    A metric with its own process group cannot be saved: a group cannot be serialized.
    """
    meta = getattr(metric, "meta", None)
    return meta is not None and meta.sync.group is None and not metric.has_reset


def _copied(states: dict[str, list[Tensor] | Tensor]) -> dict[str, list[Tensor] | Tensor]:
    return {
        name: [item.detach().cpu().clone() for item in value]
        if isinstance(value, list)
        else value.detach().cpu().clone()
        for name, value in states.items()
    }


def _on(value: list[Tensor] | Tensor, device: torch.device) -> list[Tensor] | Tensor:
    return [item.to(device) for item in value] if isinstance(value, list) else value.to(device)
