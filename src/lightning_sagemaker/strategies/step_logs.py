# SPDX-License-Identifier: Apache-2.0
"""``self.log`` in a pipeline: what the last stage logs for microbatches is logged once for the batch, on all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn
from torchmetrics import Metric

from lightning_sagemaker.strategies.merge import merge


class Record(NamedTuple):
    """One call of ``self.log``: a number, or the name of a metric of the module with its value for the step."""

    name: str
    value: Any
    metric: str | None
    options: dict[str, Any]


@contextmanager
def recorded(module: nn.Module) -> Iterator[list[Record]]:
    """Keep calls of ``module.log`` instead of making them."""
    records: list[Record] = []

    def log(name: str, value: Any, *args: Any, **options: Any) -> None:
        if args:  # prog_bar, logger, ... by position, in Lightning's order
            options = dict(zip(("prog_bar", "logger", "on_step", "on_epoch"), args, strict=False)) | options
        if isinstance(value, Metric):
            path = next(path for path, found in module.named_modules() if found is value)
            options.setdefault("metric_attribute", path)
            records.append(Record(name, getattr(value, "_forward_cache", None), path, options))
        else:
            records.append(Record(name, value.detach() if isinstance(value, Tensor) else value, None, options))

    module.log = log  # type: ignore[assignment]
    try:
        yield records
    finally:
        del module.log


def replay(module: Any, records: list[Record], microbatches: int) -> None:
    """Call ``module.log`` once for each name, with the mean over the microbatches."""
    by_name: dict[str, list[Record]] = {}
    for record in records:
        by_name.setdefault(record.name, []).append(record)
    for name, group in by_name.items():
        last = group[-1]
        options = dict(last.options)
        if options.get("batch_size") is not None:
            options["batch_size"] *= microbatches
        value = merge([_scalar(record.value) for record in group])
        if last.metric is not None:
            metric = module.get_submodule(last.metric)
            if value is not None:
                metric._forward_cache = value
            value = metric
        module.log(name, value, **options)


def _scalar(value: Any) -> Any:
    """A number logged as a tensor with one element has dimensions that would be concatenated."""
    return value.reshape(()) if isinstance(value, Tensor) and value.numel() == 1 else value
