# SPDX-License-Identifier: Apache-2.0
"""Finds a script's torchmetrics: among the module's children, in containers in attributes, and in callbacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from torch import nn
from torchmetrics import Metric, MetricTracker

from lightning_sagemaker._compat.trainer import callbacks_of
from lightning_sagemaker.checkpoint.module_walk import Children, named_modules
from lightning_sagemaker.checkpoint.plain_values import EXACT, KEPT
from lightning_sagemaker.checkpoint.records import is_library, is_of_script

if TYPE_CHECKING:
    from lightning_sagemaker._types import Trainer

_MOST, _DEEPEST = 100, 3
"""Maximum entries of a container that is searched, and maximum depth."""


class Metrics(NamedTuple):
    """The metrics of a Trainer, by name.

    Attributes:
        metrics: Metrics, each once, with those within wrappers and collections.
        trackers: Metric trackers, which are growing lists of metrics.

    """

    metrics: dict[str, Metric]
    trackers: dict[str, MetricTracker]


def metrics_of(trainer: Trainer, children: Children | None = None) -> Metrics:
    """Find the metrics of a Trainer.

    Args:
        trainer: The Trainer.
        children: :func:`~.module_walk.named_modules` of its module, if already computed.

    """
    children = named_modules(trainer.lightning_module) if children is None else children
    found, seen = Metrics({}, {}), {id(child) for _, child in children}
    _add(found, children)
    for name, module in _held(trainer, children):
        if id(module) not in seen:
            seen.add(id(module))
            _add(found, [(f"{name}.{key}".rstrip("."), child) for key, child in named_modules(module)])
    return found


def _add(found: Metrics, children: Children) -> None:
    kinds = {kind for kind in {type(child) for _, child in children} if issubclass(kind, (Metric, MetricTracker))}
    if not kinds:  # the usual case, which is checked in each step with recovery in the job
        return
    known = {id(one) for one in found.metrics.values()}
    for name, child in children:
        if type(child) not in kinds:
            continue
        if isinstance(child, MetricTracker):
            found.trackers[name] = child
        elif isinstance(child, Metric) and id(child) not in known:
            found.metrics[name] = child


def _held(trainer: Trainer, children: Children) -> Iterator[tuple[str, nn.Module]]:
    """Modules in attributes that are not among a module's children."""
    callbacks = [(f"callbacks.{n}.{type(one).__name__}", one) for n, one in enumerate(callbacks_of(trainer))]
    owners: list[tuple[str, object]] = [*children, *callbacks]
    kinds = {kind for kind in {type(one) for _, one in owners} if not is_library(kind)}
    for name, owner in [pair for pair in owners if type(pair[1]) in kinds]:
        for key, value in [*vars(owner).items()]:
            if key not in KEPT and type(value) not in EXACT:
                yield from _within(f"{name}.{key}".lstrip("."), value, _DEEPEST)


def _within(name: str, value: object, depth: int) -> Iterator[tuple[str, nn.Module]]:
    entries: Iterable[tuple[object, object]] = ()
    if isinstance(value, nn.Module):
        yield name, value
    elif depth and isinstance(value, dict) and len(value) <= _MOST:
        entries = [*value.items()]
    elif depth and isinstance(value, (list, tuple)) and len(value) <= _MOST:
        entries = enumerate(value)
    elif depth and type(value) not in EXACT and is_of_script(type(value)):
        entries = [*vars(value).items()]
    for key, entry in entries:
        yield from _within(f"{name}.{key}", entry, depth - 1)
