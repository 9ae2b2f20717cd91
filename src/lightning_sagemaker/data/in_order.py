# SPDX-License-Identifier: Apache-2.0
"""Loaders with ``in_order=False``: a number of batches is no position among batches that arrive as workers finish them."""

from __future__ import annotations

from collections.abc import Callable

from torch.utils.data import DataLoader


class InOrder(DataLoader[object]):
    """Mixed into the class of a tracked loader: its workers' batches are returned in the sampler's order."""

    @property
    def in_order(self) -> bool:
        """Always true; the script's own value is in the instance, and holds again when the loader is released."""
        return True

    @in_order.setter
    def in_order(self, value: bool) -> None:
        vars(self)["in_order"] = value


def report_order(loader: DataLoader[object], report: Callable[[str], None]) -> None:
    """Report that a loader's batches will be in order though the script has not asked for it."""
    if loader.num_workers and not getattr(loader, "in_order", True):
        report(
            f"{type(loader).__name__} has in_order=False, with which a run that is resumed within an epoch would see some"
            " samples twice and others never: its batches are returned in order. HINT: remove in_order=False."
        )
