# SPDX-License-Identifier: Apache-2.0
"""Collectives that a script calls in a step, while a rank trains on more shards than its own.

Ranks then run different numbers of passes, so their calls do not match. Values that Lightning reduces for logging
(``self.log(..., sync_dist=True)``) are stored in the passes for lost ranks' shards, and added to this rank's in its own
pass. Any other collective needs all ranks: the others wait for a replacement. So do collectives after a validation in
which ranks have different numbers of shards: shapes differ, and the mean over ranks is not the mean over samples.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_sagemaker._compat.default_group import refusing_collectives

_OPERATIONS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], dist.ReduceOp.RedOpType]] = {
    "mean": (torch.add, dist.ReduceOp.SUM),
    "avg": (torch.add, dist.ReduceOp.SUM),
    "sum": (torch.add, dist.ReduceOp.SUM),
    "max": (torch.maximum, dist.ReduceOp.MAX),
    "min": (torch.minimum, dist.ReduceOp.MIN),
}


class NeedsAllRanks(RuntimeError):
    """The step calls a collective that needs a rank for each shard.

    Attributes:
        collective: Name of the collective.

    """

    def __init__(self, collective: str) -> None:
        super().__init__(f"{collective} was called in a step while a rank is missing")
        self.collective = collective


def _refuse(collective: str) -> NoReturn:
    raise NeedsAllRanks(collective)


_UNEQUAL = ("torchmetrics.utilities.distributed", ".trainer.connectors.logger_connector.result")
"""Suffixes of modules that reduce counts correctly, whatever the number of samples of each rank."""


def _is_of_unequal(collective: str) -> bool:
    if any(kind in collective for kind in ("barrier", "broadcast")):
        return True
    return any(frame.f_globals.get("__name__", "").endswith(_UNEQUAL) for frame, _ in traceback.walk_stack(None))


@contextmanager
def unequal() -> Iterator[None]:
    """Context for the hooks after a validation in which ranks have different numbers of shards.

    Raises:
        NeedsAllRanks: If the script calls a collective in it, other than through torchmetrics or ``self.log``.

    """
    with refusing_collectives(_refuse, _is_of_unequal):
        yield


class StepReductions:
    """Reductions of logged values over all shards of a step."""

    def __init__(self) -> None:
        self._adopted: list[list[Tensor]] = []
        self._values: list[Tensor] = []
        self._number: int | None = None
        self._is_apart = False

    @contextmanager
    def apart(self, keeps: bool = True) -> Iterator[None]:
        """Context for a pass that other ranks do not run: for an adopted shard, or for an additional evaluation batch.

        Args:
            keeps: Whether reduced values are added to those of this rank's own pass.

        Raises:
            NeedsAllRanks: If a collective is called in it.

        """
        self._values = []
        if keeps:
            self._adopted.append(self._values)
        self._is_apart = True
        try:
            with refusing_collectives(_refuse):
                yield
        finally:
            self._is_apart = False

    @contextmanager
    def own(self) -> Iterator[None]:
        """Context for the pass for this rank's own shard, which all ranks run."""
        self._number = 0
        try:
            yield
        finally:
            self._number, self._adopted = None, []

    def drop(self) -> None:
        """Discard the values of a failed step."""
        self._adopted = []

    def reduce(self, tensor: Tensor, operation: object) -> Tensor | None:
        """Reduce a value over all shards: now, or with this rank's own. Collective in the own pass.

        Args:
            tensor: The value.
            operation: Reduce operation as in Lightning's ``Strategy.reduce``: a name or an operation of torch.

        Returns:
            The result; None outside of these passes, where the caller reduces as usual.

        """
        if self._is_apart:
            self._values.append(tensor.detach().clone())
            return tensor
        if self._number is None:
            return None
        name = str(getattr(operation, "name", operation)).lower()
        if name not in _OPERATIONS:
            return None
        combine, reduces = _OPERATIONS[name]
        number, self._number = self._number, self._number + 1
        found = [values[number] for values in self._adopted if number < len(values)]
        for value in found:
            tensor = combine(tensor, value)
        dist.all_reduce(tensor, op=reduces)
        if name not in ("mean", "avg"):
            return tensor
        count = tensor.new_full((), 1.0 + len(found))  # in hooks a value may be reduced in the own pass only
        dist.all_reduce(count)
        return tensor / count
