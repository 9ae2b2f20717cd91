# SPDX-License-Identifier: Apache-2.0
"""What a Trainer and Fabric choose where there is an MPS device. It is simulated: its tensors are the CPU's."""

import logging

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.accelerators.mps import MPSAccelerator as FabricMPSAccelerator
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators.mps import MPSAccelerator
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.strategies import DDPStrategy

from lightning_sagemaker import (
    FabricSageMakerDDPStrategy,
    FabricSMDDPStrategy,
    SageMakerDDPStrategy,
    SageMakerJobError,
    SMDDPStrategy,
    SMPShardedStrategy,
)
from lightning_sagemaker.job import Launcher, SageMakerJob
from lightning_sagemaker.strategies import machine

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


@pytest.fixture(autouse=True)
def mac(monkeypatch):
    for accelerator in (MPSAccelerator, FabricMPSAccelerator):
        monkeypatch.setattr(accelerator, "is_available", staticmethod(lambda: True))
        monkeypatch.setattr(
            accelerator, "get_parallel_devices", staticmethod(lambda devices: [torch.device("cpu")] * len(devices))
        )
        monkeypatch.setattr(accelerator, "setup_device", lambda self, device: None)
    machine.log_once.cache_clear()


def accelerator_of(kind, strategy, **arguments) -> str:
    built = (
        Trainer(strategy=strategy, **QUIET, **arguments)
        if kind == "Trainer"
        else Fabric(strategy=strategy, **arguments)
    )
    return built.accelerator.name() if kind == "Trainer" else built._accelerator.name()


@pytest.mark.parametrize("accelerator", ["auto", "mps", "gpu"])
@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        ("Trainer", "sagemaker"),
        ("Trainer", SageMakerDDPStrategy),
        ("Fabric", "sagemaker"),
        ("Fabric", FabricSageMakerDDPStrategy),
    ],
)
def test_one_process_trains_on_the_device(kind, strategy, accelerator):
    given = strategy if isinstance(strategy, str) else strategy()
    assert accelerator_of(kind, given, accelerator=accelerator) == "mps"


def test_without_a_group_and_a_wrapper():
    trainer = Trainer(strategy="sagemaker", max_steps=2, **QUIET)
    trainer.fit(BoringModel())
    assert isinstance(trainer.accelerator, MPSAccelerator)
    assert not torch.distributed.is_initialized()
    assert isinstance(trainer.strategy.model, BoringModel)


def test_fabric_without_a_group_and_a_wrapper():
    fabric = Fabric(strategy="sagemaker")
    fabric.launch()
    model = torch.nn.Linear(2, 1)
    wrapped, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with fabric.no_backward_sync(wrapped):
        fabric.backward(wrapped(torch.ones(1, 2)).sum())
    optimizer.step()
    assert isinstance(fabric._accelerator, FabricMPSAccelerator)
    assert not torch.distributed.is_initialized()
    assert wrapped.module is model
    assert wrapped._forward_module is model


TORCHRUN = {"launcher": Launcher.TORCHRUN, "global_rank": 0, "local_rank": 0, "world_size": 2, "local_world_size": 2}
OTHERS = {
    "smddp": ("Trainer", lambda: "smddp", {}),
    "SMDDPStrategy": ("Trainer", SMDDPStrategy, {}),
    "SMPShardedStrategy": ("Trainer", lambda: SMPShardedStrategy(parameters={"sharded_data_parallel_degree": 2}), {}),
    "two devices": ("Trainer", lambda: "sagemaker", {"devices": 2}),
    "two hosts": ("Trainer", SageMakerDDPStrategy, {"num_nodes": 2}),
    "torchrun": ("Trainer", lambda: SageMakerDDPStrategy(job=SageMakerJob(**TORCHRUN)), {}),
    "a job": ("Trainer", lambda: SageMakerDDPStrategy(job=SageMakerJob(in_container=True)), {}),
    "Fabric smddp": ("Fabric", lambda: "smddp", {}),
    "FabricSMDDPStrategy": ("Fabric", FabricSMDDPStrategy, {}),
    "Fabric, two devices": ("Fabric", lambda: "sagemaker", {"devices": "2"}),
}


@pytest.mark.parametrize("case", OTHERS)
def test_everything_else_trains_on_the_cpu_and_says_so_once(case, caplog):
    kind, strategy, arguments = OTHERS[case]
    with caplog.at_level(logging.INFO):
        assert accelerator_of(kind, strategy(), **arguments) == "cpu"
        assert accelerator_of(kind, strategy(), **arguments) == "cpu"
    (said,) = [record.message for record in caplog.records if "Training on the CPU" in record.message]
    assert "MPS" in said


@pytest.mark.parametrize("case", OTHERS)
def test_mps_by_name_is_refused_in_a_sentence(case):
    kind, strategy, arguments = OTHERS[case]
    with pytest.raises(
        SageMakerJobError,
        match=r"accelerator='mps' was set .* not supported on the MPS accelerator: .*HINT: leave accelerator",
    ):
        accelerator_of(kind, strategy(), accelerator="mps", **arguments)


def test_others_are_as_they_were():
    with pytest.raises(ValueError, match="not supported on the MPS accelerator"):
        Trainer(strategy="ddp", **QUIET)
    with pytest.raises(ValueError, match="not supported on the MPS accelerator"):
        Trainer(strategy=DDPStrategy(), **QUIET)
    assert accelerator_of("Trainer", "smddp", accelerator="cpu") == "cpu"
