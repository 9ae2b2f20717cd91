# SPDX-License-Identifier: Apache-2.0
"""Where the data of each split comes from: what was set, else the job's channels, else the recipe's built-in data."""

from __future__ import annotations

from lightning_sagemaker import SageMakerJob

AUTO = "auto"

_CHANNELS = {"train": ("train", "training"), "val": ("validation", "val"), "test": ("test",), "predict": ("predict",)}
"""Split -> names of SageMaker input channels, in this order."""


def find_sources(
    job: SageMakerJob, train: str | None, validation: str | None, test: str | None, predict: str | None, builtin: str
) -> dict[str, str]:
    """Split (train, val, test, predict) -> where its data is.

    What is not set comes from the job's channel of that name. ``train`` ``auto`` without a channel is ``builtin``, or
    nothing where other data is given, as to predict with a trained model.
    """
    given = {"train": None if train == AUTO else train, "val": validation, "test": test, "predict": predict}
    for split, names in _CHANNELS.items():
        channels = (str(job.channels[name]) for name in names if name in job.channels)
        given[split] = given[split] or next(channels, None)
    sources = {split: name for split, name in given.items() if name}
    return {"train": builtin} if train == AUTO and not sources else sources
