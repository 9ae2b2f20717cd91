# SPDX-License-Identifier: Apache-2.0
"""What ``strategy="sagemaker"`` does by itself in a training job."""

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from lightning_sagemaker import SageMakerJob, SpotInterruption
from lightning_sagemaker.checkpoint.io import SafeCheckpointIO

QUIET = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)


class Model(LightningModule):
    fails = False

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        if self.fails:
            raise ValueError("no good hf_123456")
        return self.net(batch).mean()

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(4, 2))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture(params=[True, False], ids=["job", "laptop"])
def job(request, tmp_path, monkeypatch):
    job = SageMakerJob(in_container=request.param, checkpoint_dir=tmp_path / "checkpoints")
    monkeypatch.setattr(SageMakerJob, "from_environment", classmethod(lambda cls, *_: job))
    monkeypatch.setenv("HF_TOKEN", "hf_123456")
    return job


def trainer(folder, **options) -> Trainer:
    return Trainer(strategy="sagemaker", accelerator="cpu", max_steps=2, default_root_dir=folder, **QUIET, **options)


@pytest.mark.parametrize("saves", [True, False])
def test_interruptions_are_looked_after_in_a_job_only(job, tmp_path, saves):
    built = trainer(tmp_path, enable_checkpointing=saves)
    built.fit(Model())
    found = [callback for callback in built.callbacks if isinstance(callback, SpotInterruption)]
    assert len(found) == int(job.in_container)
    assert isinstance(built.strategy.checkpoint_io, SafeCheckpointIO)


def test_a_users_own_stays_alone(job, tmp_path):
    own = SpotInterruption(save_every=None)
    built = trainer(tmp_path, callbacks=[own], enable_checkpointing=False)
    built.fit(Model())
    assert [callback for callback in built.callbacks if isinstance(callback, SpotInterruption)] == [own]


def test_a_failure_is_written_in_a_job_only(job, tmp_path):
    model = Model()
    model.fails = True
    with pytest.raises(ValueError, match="no good"):
        trainer(tmp_path, enable_checkpointing=False).fit(model)
    path = tmp_path / "output" / "failure"
    assert path.exists() == job.in_container
    if job.in_container:
        assert path.read_text().startswith("The program failed after step 0: ValueError: no good ***\n")
