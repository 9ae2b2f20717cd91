# SPDX-License-Identifier: Apache-2.0
"""Where MemoryCheckpoint is of no use it says so; see tests/distributed/test_memory.py for where it is."""

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader

from lightning_sagemaker import MemoryCheckpoint
from tests.skips import needs_shards


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


@needs_shards
@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("before", ["nothing", "a finder's trial", "a named checkpoint"])
def test_only_a_fit_that_was_given_its_checkpoint_makes_no_copies(tmp_path, before, monkeypatch, recwarn):
    steps = []
    monkeypatch.setattr(MemoryCheckpoint, "_begin", lambda self, trainer, memory: steps.append(trainer.global_step))
    options = {"strategy": "smddp_fsdp", "devices": 1, "default_root_dir": tmp_path}
    module, data, path = BoringModel(), DataLoader(torch.randn(8, 32), 2), None
    module.batch_size = 2
    if before == "a named checkpoint":
        path = tmp_path / "named.ckpt"
        first = trainer(**options)
        first.fit(module, data)
        first.save_checkpoint(path)
    one = trainer(MemoryCheckpoint(1, tmp_path / "memory"), **options)
    one.fit_loop.epoch_loop.max_steps = 3
    if before == "a finder's trial":
        one.ckpt_path = None
        one._checkpoint_connector._ckpt_path = tmp_path / "of a trial.ckpt"  # as it is after one
    one.fit(module, data, ckpt_path=path)
    assert steps == ([] if path else [1, 2, 3])
    assert any("fit was given ckpt_path=" in str(said.message) for said in recwarn) == (path is not None)
