# SPDX-License-Identifier: Apache-2.0
"""Where MemoryCheckpoint is of no use it says so; see tests/distributed/test_memory.py for where it is."""

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lightning_sagemaker import MemoryCheckpoint


def trainer(*callbacks: MemoryCheckpoint, **options: object) -> Trainer:
    return Trainer(
        accelerator="cpu",
        max_steps=1,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def test_a_strategy_whose_ranks_have_the_whole_state_is_refused():
    with pytest.raises(MisconfigurationException, match=r"MemoryCheckpoint was given with .*HINT: .*supervise"):
        trainer(MemoryCheckpoint()).fit(BoringModel())


def test_a_wrong_interval_is_refused():
    with pytest.raises(ValueError, match=r"every_n_steps=0 was set.*HINT"):
        MemoryCheckpoint(0)
