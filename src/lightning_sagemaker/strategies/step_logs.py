# SPDX-License-Identifier: Apache-2.0
"""``self.log`` in a pipeline: the last stage's logs for microbatches are merged into one for the batch, on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from lightning_sagemaker.strategies.merge import merge

if TYPE_CHECKING:
    from lightning_sagemaker._types import LightningModule


T = TypeVar("T")


class Record(NamedTuple):
    """A call of ``self.log`` with a number, or with a metric of the module and its value for the step.

    Attributes:
        name: Name under which the value is logged.
        value: The number; for a metric, None if it has no value for the step.
        metric: Name of the metric in the module.
        options: Options of the call.
        weight: Fraction of the batch's samples in the microbatch.

    """

    name: str
    value: Tensor | float | None
    metric: str | None
    options: dict[str, Any]
    weight: float = 1.0


class Records(list[Record]):
    """Calls of ``self.log``, in order.

    Attributes:
        weight: Fraction of the batch's samples in the running microbatch.

    """

    weight = 1.0


@contextmanager
def recorded(module: nn.Module, records: Records) -> Iterator[None]:
    """Context in which calls of ``module.log`` are stored in ``records`` instead of being run."""

    def log(name: str, value: Metric | Tensor | float, *args: object, **options: Any) -> None:
        if args:  # positional prog_bar, logger, ..., in Lightning's order
            options = dict(zip(("prog_bar", "logger", "on_step", "on_epoch"), args, strict=False)) | options
        if isinstance(value, Metric):
            path = next(path for path, found in module.named_modules() if found is value)
            options.setdefault("metric_attribute", path)
            records.append(Record(name, getattr(value, "_forward_cache", None), path, options, records.weight))
        else:
            plain = value.detach() if isinstance(value, Tensor) else value
            records.append(Record(name, plain, None, options, records.weight))

    module.log = log  # type: ignore[assignment]
    try:
        yield
    finally:
        del module.log


def replay(module: LightningModule, records: list[Record]) -> None:
    """Call ``module.log`` once for each name, with the value of the batch.

    This is the mean over the microbatches, weighted by samples, or the sum, minimum or maximum if that is its ``reduce_fx``.
    """
    by_name: dict[str, list[Record]] = {}
    for record in records:
        by_name.setdefault(record.name, []).append(record)
    for name, group in by_name.items():
        last = group[-1]
        options = dict(last.options)
        if options.get("batch_size") is not None:
            options["batch_size"] = sum(record.options.get("batch_size") or 0 for record in group)
        total, even = sum(record.weight for record in group), len({record.weight for record in group}) == 1
        weights = None if even else [record.weight / total for record in group]
        value = _reduced([_scalar(record.value) for record in group], weights, options.get("reduce_fx"))
        if last.metric is not None:
            metric = module.get_submodule(last.metric)
            if value is not None:
                metric._forward_cache = value
            value = metric
        module.log(name, value, **options)


_REDUCTIONS: dict[object, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(("sum", torch.sum, sum), torch.sum),
    **dict.fromkeys(("min", torch.min, min), torch.amin),
    **dict.fromkeys(("max", torch.max, max), torch.amax),
}
"""``reduce_fx`` other than a mean -> function that reduces the microbatches' values."""


def _reduced(values: list[Any], weights: list[float] | None, reduce_fx: object) -> Any:
    reduction = _REDUCTIONS.get(reduce_fx.lower() if isinstance(reduce_fx, str) else reduce_fx)
    if reduction is None or any(value is None for value in values):
        return merge(values, weights)
    return reduction(torch.stack([torch.as_tensor(value) for value in values]))


def _scalar(value: T) -> T | Tensor:
    """A one-element tensor without dimensions, which would otherwise be concatenated."""
    return value.reshape(()) if isinstance(value, Tensor) and value.numel() == 1 else value
