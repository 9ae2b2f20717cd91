# SPDX-License-Identifier: Apache-2.0
"""Whether a checkpoint fits a model, and whether a model that predicts has been trained."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer

from lightning_sagemaker.recipes._common.modules.pretrained import new_weights


@contextlib.contextmanager
def explain_misfit() -> Iterator[None]:
    """Context for loading a checkpoint's weights.

    Raises:
        MisconfigurationException: In place of torch's error that lists all weights that differ.

    """
    try:
        yield
    except RuntimeError as error:
        lines = str(error).strip().splitlines()
        if len(lines) < 2 or "loading state_dict" not in lines[0]:
            raise
        raise MisconfigurationException(
            f"the checkpoint is of another model or other data: {lines[1].strip()[:300]} HINT: give the options, the"
            " configuration and the data with which it was trained, or another --run_dir; --pretrained takes the weights"
            " that fit."
        ) from error


def check_optimizer(trainer: Trainer | None, checkpoint: Mapping[str, Any], optimizer: str) -> None:
    """Refuse to resume training with another optimizer, whose state a checkpoint lacks.

    Raises:
        MisconfigurationException: If it is another.

    """
    saved = checkpoint.get("hyper_parameters", {}).get("optimizer", optimizer)
    if saved != optimizer and trainer is not None and trainer.state.fn == "fit":
        raise MisconfigurationException(
            f"model.optimizer={optimizer!r} was set, but the checkpoint is of a run with {saved!r}. HINT: resume with the"
            " same; --pretrained starts a new run with its weights."
        )


def check_trained(model: Any, pretrained: str | None) -> None:
    """Refuse to predict with random weights.

    Args:
        model: The model.
        pretrained: Where its weights are from; ``None``: from nowhere.

    Raises:
        MisconfigurationException: If some weights are random.

    """
    new = new_weights(model)
    if pretrained is None or new:
        what = "all weights are random" if pretrained is None else f"{pretrained} lacks {', '.join(new[:3])}"
        raise MisconfigurationException(
            f"There is no trained model to predict with: {what}. HINT: set ckpt_path to a checkpoint of this recipe, or"
            " model.pretrained to the model of a run."
        )
