# SPDX-License-Identifier: Apache-2.0
"""Under Slurm, scripts export torchrun's variables for others; Lightning reads Slurm's, as do these strategies."""

import lightning.pytorch as pl
import pytest
from lightning.fabric import Fabric
from lightning.pytorch.plugins.environments import LightningEnvironment, LSFEnvironment, SLURMEnvironment

from lightning_sagemaker.job import Launcher, SageMakerJob, SageMakerJobError

SLURM = {
    "SLURM_JOB_NAME": "training",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}
LSF = {
    "LSB_JOBID": "1",
    "LSB_DJOB_RANKFILE": "hosts",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "JSM_NAMESPACE_SIZE": "4",
    "JSM_NAMESPACE_RANK": "3",
}
EXPORTED = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


@pytest.fixture
def exported(monkeypatch):
    for name, value in EXPORTED.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("strategy", ["sagemaker", "smddp"])
@pytest.mark.parametrize("of", [pl.Trainer, Fabric])
@pytest.mark.parametrize(
    ("scheduler", "environment"), [(SLURM, SLURMEnvironment), (LSF, LSFEnvironment)], ids=["slurm", "lsf"]
)
def test_exported_variables_without_an_address(exported, monkeypatch, strategy, of, scheduler, environment):
    for name, value in scheduler.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(LSFEnvironment, "_read_hosts", lambda _: ["batch", "node-0", "node-1"])
    monkeypatch.setattr(LSFEnvironment, "_get_node_rank", lambda _: 1)
    made = of(strategy=strategy, accelerator="cpu", devices=2, num_nodes=2).strategy
    assert type(made.cluster_environment) is environment
    assert (made.global_rank, made.local_rank, made.node_rank, made.world_size) == (3, 1, 1, 4)


def test_an_interactive_allocation_is_not_slurms():
    with pytest.raises(SageMakerJobError, match="MASTER_ADDR is not"):
        SageMakerJob.from_environment(SLURM | EXPORTED | {"SLURM_JOB_NAME": "interactive"}, "/nonexistent")


def test_torchrun_under_slurm_is_torchruns():
    launched = EXPORTED | {"TORCHELASTIC_RUN_ID": "1", "MASTER_ADDR": "node-0", "MASTER_PORT": "1"}
    job = SageMakerJob.from_environment(SLURM | launched, "/nonexistent")
    assert (job.launcher, job.global_rank) == (Launcher.TORCHRUN, 3)


def test_an_environment_of_ones_own_under_slurm(exported, monkeypatch):
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    trainer = pl.Trainer(strategy="smddp", accelerator="cpu", devices=2, num_nodes=2, plugins=[LightningEnvironment()])
    assert type(trainer.strategy.cluster_environment) is LightningEnvironment
