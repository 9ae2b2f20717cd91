# SPDX-License-Identifier: Apache-2.0
"""What of a loader's position cannot be restored within an epoch, or only by re-reading all of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.data import DataLoader, IterableDataset

from lightning_sagemaker.data.position import Watch, has_state


def limit_of(watched: Watch) -> str | None:
    """The limit of a loader, as a message for the start of a fit; None if there is none."""
    loader = watched.loader
    if has_state(loader):
        return None
    dataset = getattr(loader, "dataset", None)
    stream = dataset if isinstance(loader, DataLoader) else loader
    if hasattr(loader, "__next__"):
        return (
            f"{type(loader).__name__} can be read only once: a run that is resumed within an epoch starts the epoch over."
            " HINT: give a DataLoader."
        )
    if held := watched.capture.iterators():
        return (
            f"{type(stream).__name__} continues from epoch to epoch (it holds an iterator, {', '.join(held)}): a resumed"
            " run restarts it, so it may see some samples twice and others never. HINT: give the loader state_dict and"
            " load_state_dict, or create the iterator in __iter__."
        )
    if isinstance(stream, IterableDataset) or (stream is loader and not isinstance(loader, (Sequence, torch.Tensor))):
        return (
            f"{type(stream).__name__} does not report its position: a run that is resumed within an epoch reads it again"
            " from the beginning, which is exact if that yields the same samples. HINT: give the loader state_dict"
            " and load_state_dict, as torchdata's StatefulDataLoader, or use a dataset with a length."
        )
    return None
