# SPDX-License-Identifier: Apache-2.0
"""Gathers the rows that all processes computed, each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors


class Rows:
    """Collects rows by index; call :meth:`gather` on all processes at the end of an epoch.

    All processes must add rows of the same shapes. While one is missing in a job that recovers in itself, others have more.
    """

    def __init__(self) -> None:
        self._index: list[Tensor] = []
        self._columns: list[Mapping[str, Tensor]] = []

    def add(self, index: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Append a batch.

        Args:
            index: Number of each sample, ``[batch]``; negative: padding.
            columns: Name -> values, ``[batch, ...]``.

        """
        self._index.append(index.detach().cpu())
        self._columns.append({name: column.detach().cpu() for name, column in columns.items()})

    def gather(self, trainer: Trainer) -> tuple[Tensor, dict[str, Tensor]]:
        """Return all rows of all processes, ascending by index, and clear them; collective.

        Returns:
            Indices ``[rows]`` and name -> ``[rows, ...]``, on the CPU and equal on all processes.

        """
        index = _all(trainer, self._index)
        order = torch.argsort(index)[int((index < 0).sum()) :]
        ascending = index[order]
        # Ranks of one replica of the model (strategy smp) have the same rows: keep one of each.
        order = order[
            torch.cat([ascending.new_ones(1, dtype=torch.bool), ascending[1:] != ascending[:-1]])[: len(order)]
        ]
        names: Sequence[str] = list(self._columns[0]) if self._columns else []
        columns = {name: _all(trainer, [batch[name] for batch in self._columns])[order] for name in names}
        self._index, self._columns = [], []
        return index[order], columns


def _all(trainer: Trainer, parts: Sequence[Tensor]) -> Tensor:
    if not parts:
        return torch.zeros(0, dtype=torch.int64)
    mine = torch.cat(list(parts))
    if trainer.world_size == 1:
        return mine
    return torch.cat(gather_all_tensors(mine.to(trainer.strategy.root_device))).cpu()
