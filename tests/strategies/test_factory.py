# SPDX-License-Identifier: Apache-2.0
"""What a Trainer or a Fabric gets, without starting any process."""

import dataclasses
import logging

import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.environments import LightningEnvironment, SLURMEnvironment
from lightning.pytorch.strategies import StrategyRegistry

import lightning_sagemaker
from lightning_sagemaker import SageMakerEnvironment, SageMakerJobError, SMDDPStrategy, SMPShardedStrategy, registry
from lightning_sagemaker.job import Distribution, Launcher, SageMakerJob
from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.strategies import backend, factory, job_aware
from lightning_sagemaker.strategies.sharded import FabricSMPShardedStrategy

LAUNCHED = {"launcher": Launcher.TORCHRUN, "global_rank": 0, "local_rank": 0, "world_size": 4, "local_world_size": 2}
JOB = SageMakerJob(in_container=True, hosts=("algo-1", "algo-2"), current_host="algo-1", num_nodes=2, **LAUNCHED)


def trainer(job=JOB, **arguments) -> Trainer:
    defaults = {
        "strategy": SMDDPStrategy(job=job),
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
    }
    return Trainer(**(defaults | arguments))


def test_every_name_is_registered():
    names = {entry.name for entry in registry.STRATEGIES}
    unused = [
        f"{name}_find_unused_parameters_{value}" for name in ("sagemaker", "smddp") for value in ("true", "false")
    ]
    assert {"sagemaker", "smddp", *unused} <= names
    assert names <= set(StrategyRegistry.available_strategies())
    registry.register()  # twice does no harm
    assert all(entry.description for entry in registry.STRATEGIES)


@pytest.mark.parametrize("value", [True, False])
def test_find_unused_parameters(value):
    built = Trainer(strategy=f"smddp_find_unused_parameters_{str(value).lower()}", accelerator="cpu", logger=False)
    assert built.strategy._ddp_kwargs == {"find_unused_parameters": value}


def test_world_without_any_argument():
    built = trainer()
    assert (built.num_nodes, built.num_devices, built.world_size) == (2, 2, 4)
    assert isinstance(built.strategy.cluster_environment, SageMakerEnvironment)
    assert built.strategy.distributed_sampler_kwargs == {"num_replicas": 4, "rank": 0}


def test_hosts_of_sharded_training_are_those_of_the_job():
    unlaunched = dataclasses.replace(JOB, launcher=Launcher.NONE, **dict.fromkeys(LAUNCHED.keys() - {"launcher"}))
    for job in (JOB, unlaunched):
        strategy = SMPShardedStrategy(job=job, parameters={"hybrid_shard_degree": 2})
        built = trainer(strategy=strategy, devices=2)
        assert (built.num_nodes, built.num_devices, built.world_size) == (2, 2, 4)


@pytest.mark.parametrize("arguments", [{"num_nodes": 2}, {"devices": 2}, {"num_nodes": 2, "devices": 2}])
def test_right_numbers_are_accepted(arguments):
    assert trainer(**arguments).world_size == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_nodes": 3}, "num_nodes=3 was set, but this job has 2 host(s)"),
        ({"devices": 3}, "devices=3 was set, but the launcher started 2 process(es)"),
    ],
)
def test_wrong_numbers_are_refused(arguments, words):
    with pytest.raises(SageMakerJobError, match="HINT") as caught:
        trainer(**arguments)
    assert words in str(caught.value)


def test_a_users_own_environment_is_kept(monkeypatch):
    class Own(LightningEnvironment):
        pass

    patched = LightningEnvironment()
    patched.world_size = lambda: 4
    for environment in (Own(), patched):
        assert trainer(plugins=[environment], num_nodes=1).strategy.cluster_environment is environment
    assert not job_aware._is_detected(SLURMEnvironment())
    mine = LightningEnvironment()
    assert SMDDPStrategy(job=JOB, cluster_environment=mine).cluster_environment is mine


def test_a_bare_machine_keeps_lightnings_own_environment():
    built = trainer(job=SageMakerJob(), devices=2, num_nodes=3)
    assert type(built.strategy.cluster_environment) is LightningEnvironment
    assert built.world_size == 6


def test_the_strategy_follows_the_job(monkeypatch, caplog):
    asked = dataclasses.replace(JOB, distribution=Distribution.SMDDP, simulated=True)
    for job, name in (
        (asked, "SMDDPStrategy"),
        (JOB, "SageMakerDDPStrategy"),
        (SageMakerJob(), "SageMakerDDPStrategy"),
    ):
        monkeypatch.setattr(SageMakerJob, "from_environment", classmethod(lambda cls, *_, job=job: job))
        assert type(Trainer(strategy="sagemaker", accelerator="cpu", logger=False).strategy).__name__ == name
        assert type(Fabric(strategy="sagemaker", accelerator="cpu").strategy).__name__ == f"Fabric{name}"


def test_every_choice_can_be_made_and_no_other():
    for table in (factory.TRAINER, factory.FABRIC):
        assert all(callable(factory.load(table, name)) for name in table)
        with pytest.raises(SageMakerJobError, match="'smdp' does not select a strategy.*HINT: use one of .*smddp"):
            factory.load(table, "smdp")
    assert factory.TRAINER.keys() == factory.FABRIC.keys()


def test_a_pipeline_is_for_the_trainer(monkeypatch):
    parameters = {"partitions": 2, "microbatches": 4, "ddp": True}
    job = dataclasses.replace(JOB, model_parallel_parameters=parameters)
    monkeypatch.setattr(SageMakerJob, "from_environment", classmethod(lambda cls: job))
    for name in ("sagemaker", "smp"):
        strategy = Trainer(strategy=name, accelerator="cpu").strategy
        assert type(strategy).__name__ == "SMPStrategy"
        assert (strategy.degrees.pipeline, strategy.degrees.microbatches) == (2, 4)
        with pytest.raises(ParallelConfigError, match="partitions=2, but a pipeline.*HINT"):
            Fabric(strategy=name, accelerator="cpu")


@pytest.mark.parametrize(
    ("kind", "parameters", "said"),
    [
        (
            lightning_sagemaker.SMPStrategy,
            {"sharded_data_parallel_degree": 2},
            "a shard degree of 2 .*SMPShardedStrategy",
        ),
        (lightning_sagemaker.SMPStrategy, {"hybrid_shard_degree": 0}, "a shard degree of 0 .*SMPShardedStrategy"),
        (SMPShardedStrategy, {"partitions": 2}, "SMPShardedStrategy was given partitions=2.*SMPStrategy"),
        (FabricSMPShardedStrategy, {"partitions": 2}, r"Fabric.* was given partitions=2.*Trainer\(strategy='smp'\)"),
    ],
)
def test_a_class_without_what_was_asked_refuses_it(kind, parameters, said):
    with pytest.raises(ParallelConfigError, match=said):
        kind(parameters=parameters, job=JOB)


def test_model_parallelism_needs_parameters():
    with pytest.raises(ParallelConfigError, match="says how to partition.*HINT"):
        Trainer(strategy="smp", accelerator="cpu")


def test_one_process_needs_no_group():
    strategy = trainer(
        job=SageMakerJob(), strategy=lightning_sagemaker.SageMakerDDPStrategy(job=SageMakerJob())
    ).strategy
    strategy.setup_distributed()
    assert not torch.distributed.is_initialized()


GPUS = [torch.device("cuda", index) for index in range(4)]
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("devices", "launched", "expected"),
    [
        (GPUS, 4, GPUS),
        (GPUS, 2, GPUS[:2]),
        ([GPUS[0]], 4, [GPUS[0]] * 4),  # a launcher that shows each process its own GPU only
        ([CPU], 3, [CPU] * 3),
    ],
)
def test_devices_are_fitted_to_the_launch(monkeypatch, devices, launched, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert job_aware._fit_devices(devices, launched) == expected


@pytest.mark.parametrize(("devices", "launched"), [(GPUS, 5), (GPUS[:3], 2), ([CPU] * 2, 3)])
def test_devices_that_cannot_be_fitted(monkeypatch, devices, launched):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(SageMakerJobError, match=f"set devices={launched}"):
        job_aware._fit_devices(devices, launched)


@pytest.mark.parametrize(
    ("launched", "visible", "backend", "fails"),
    [
        (2, "0", None, True),
        (2, "0", "gloo", False),
        (1, "0", None, False),
        (2, "MIG-1,MIG-2", None, False),
    ],
)
def test_processes_that_would_share_a_gpu_are_refused(monkeypatch, launched, visible, backend, fails):
    """Before there is a group, on all of them: else some would wait for one that cannot have its GPU."""
    monkeypatch.setattr(job_aware, "driver_gpus", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    place = {"global_rank": 0, "local_rank": 0, "local_world_size": launched, "world_size": launched}
    job = SageMakerJob(launcher=Launcher.TORCHRUN, num_gpus=1, **place)
    strategy = SMDDPStrategy(job=job, process_group_backend=backend)
    strategy.cluster_environment = SageMakerEnvironment(job)
    if not fails:
        strategy.parallel_devices = GPUS[:1]
        return
    with pytest.raises(SageMakerJobError, match=r"2 processes on this host, which has 1 GPU.*HINT: start 1"):
        strategy.parallel_devices = GPUS[:1]


REAL = dataclasses.replace(
    JOB, launcher=Launcher.SMDDPRUN, num_gpus=8, instance_type="ml.p4d.24xlarge", smddp_version="2.6.0"
)


@pytest.mark.parametrize(
    ("job", "device", "expected", "words"),
    [
        (REAL, GPUS[0], "smddp", "is installed"),
        (
            dataclasses.replace(REAL, launcher=Launcher.TORCHRUN),
            GPUS[0],
            "nccl",
            "AllReduce falls back to nccl, so nccl",
        ),
        (REAL, CPU, "gloo", "smddp needs a GPU and this process trains on the CPU"),
        (dataclasses.replace(REAL, smddp_version=None), GPUS[0], "nccl", "not installed in this image"),
        (dataclasses.replace(REAL, smddp_version=None), CPU, "gloo", "nccl needs a GPU"),
        (SageMakerJob(), CPU, "smddp", "the open shim"),
    ],
)
def test_backend_and_its_reason(job, device, expected, words):
    chosen, reason = backend.choose_backend(job, device)
    assert chosen == expected
    assert words in reason


def test_an_explicit_backend_is_taken_and_the_choice_is_logged(caplog):
    assert SMDDPStrategy(job=JOB, process_group_backend="gloo")._get_process_group_backend() == "gloo"
    strategy = trainer(job=SageMakerJob()).strategy
    with caplog.at_level(logging.INFO):
        assert strategy._get_process_group_backend() == "smddp_composite"
    assert [r.message for r in caplog.records if "the open shim" in r.message] == [
        "SMDDPStrategy: backend 'smddp'. This is not a SageMaker job, so the open shim stands in for AWS's SMDDP."
    ]
