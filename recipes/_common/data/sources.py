# SPDX-License-Identifier: Apache-2.0
"""Where the data of each split comes from: what was set, else the job's channels, else the recipe's built-in data."""

from __future__ import annotations

from lightning_sagemaker import SageMakerJob
from lightning_sagemaker.recipes._common.data.table_sources import remote_files

AUTO = "auto"

_CHANNELS = {"train": ("train", "training"), "val": ("validation", "val"), "test": ("test",), "predict": ("predict",)}
"""Split -> names of SageMaker input channels, in this order."""


def option_of(split: str) -> str:
    """The option that sets a split's source, for messages."""
    return "data.validation" if split == "val" else f"data.{split}"


def find_sources(
    job: SageMakerJob, train: str | None, validation: str | None, test: str | None, predict: str | None, builtin: str
) -> dict[str, str]:
    """Split (train, val, test, predict) -> source of its data.

    A split that is not set comes from the job's channel of that name. ``train`` = ``auto`` without any source is
    ``builtin``; if another split has a source, as to predict with a trained model, there is no training data.
    """
    remote_files.cache_clear()  # what an earlier data module of this process has found may have changed
    given = {"train": None if train == AUTO else train, "val": validation, "test": test, "predict": predict}
    for split, names in _CHANNELS.items():
        channels = (str(job.channels[name]) for name in names if name in job.channels)
        given[split] = given[split] or next(channels, None)
    sources = {split: name for split, name in given.items() if name}
    return {"train": builtin} if train == AUTO and not sources else sources
