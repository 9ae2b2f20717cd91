# SPDX-License-Identifier: Apache-2.0
"""LightningCLI configures the strategies as it does Lightning's."""

from datetime import timedelta
from unittest import mock

import pytest
import torch
from jsonargparse import ArgumentParser
from lightning.fabric import strategies as fabric_strategies
from lightning.pytorch import strategies
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel
from lightning.pytorch.plugins.environments import LightningEnvironment

import lightning_sagemaker
from lightning_sagemaker.strategies.trainer_defaults import JobDefaults

REDUCTION = {"gradient_reduction", "gradient_compression", "powersgd_rank", "powersgd_start", "recovery", "job"}
LAYOUT = {"parameters", "degrees", "activation_checkpointing", "job"}
SHARDS = {"hybrid_shard_degree", "auto_wrap_policy", "mp_policy", "cpu_offload", "reshard_after_forward"}
PARTS = {"async_checkpoint", "save_distributed_checkpoint"}


def arguments(kind: type) -> set[str]:
    parser = ArgumentParser()
    parser.add_class_arguments(kind)
    return {action.dest for action in parser._actions} - {"help"}


@pytest.mark.parametrize(
    ("name", "stock", "own"),
    [
        ("SMDDPStrategy", strategies.DDPStrategy, REDUCTION),
        ("SageMakerDDPStrategy", strategies.DDPStrategy, REDUCTION),
        ("SMPStrategy", strategies.DDPStrategy, LAYOUT | {"stages_per_rank"}),
        ("SMPShardedStrategy", strategies.ModelParallelStrategy, LAYOUT | PARTS),
        ("SMDDPFSDPStrategy", strategies.ModelParallelStrategy, LAYOUT | PARTS | SHARDS),
        ("FabricSMDDPStrategy", fabric_strategies.DDPStrategy, REDUCTION),
        ("FabricSageMakerDDPStrategy", fabric_strategies.DDPStrategy, REDUCTION),
        ("FabricSMDDPFSDPStrategy", fabric_strategies.ModelParallelStrategy, LAYOUT | SHARDS),
    ],
)
def test_a_class_takes_all_that_lightnings_takes(name, stock, own):
    assert arguments(getattr(lightning_sagemaker, name)) >= arguments(stock) | own


@pytest.mark.parametrize("name", ["SMDDPStrategy", "SageMakerDDPStrategy"])
def test_arguments_arrive(name):
    given = {"find_unused_parameters": True, "gradient_compression": "bf16", "timeout": "00:10:00"}
    strategy = configured(name, **given)
    assert type(strategy) is getattr(lightning_sagemaker, name)
    assert strategy._ddp_kwargs["find_unused_parameters"] is True
    assert strategy._timeout == timedelta(minutes=10)
    assert strategy._reduction.compression == "bf16"


def test_arguments_of_sharded_strategies_arrive():
    strategy = configured("SMDDPFSDPStrategy", cpu_offload=True, async_checkpoint=True, activation_checkpointing=True)
    assert strategy.shard_options.cpu_offload
    assert strategy.async_checkpoint
    assert strategy.activation_checkpointing
    assert configured("SMPStrategy", degrees={"pipeline": 2, "microbatches": 4}).degrees.microbatches == 4


def configured(name: str, **options: object) -> JobDefaults:
    chosen = {"class_path": f"lightning_sagemaker.{name}", "init_args": options}
    settings = {"strategy": chosen, "accelerator": "cpu", "devices": 2, "logger": False}
    return LightningCLI(BoringModel, BoringDataModule, run=False, args={"trainer": settings}).trainer.strategy


@pytest.mark.parametrize(
    ("name", "stock"),
    [
        ("SageMakerDDPStrategy", strategies.DDPStrategy),
        ("SMDDPStrategy", strategies.DDPStrategy),
        ("FabricSageMakerDDPStrategy", fabric_strategies.DDPStrategy),
        ("FabricSMDDPStrategy", fabric_strategies.DDPStrategy),
    ],
)
def test_ranks_are_known_without_a_trainer(name, stock, monkeypatch):
    """A script may start processes itself, and call ``setup_environment`` in each."""
    monkeypatch.setattr("lightning.pytorch.utilities.rank_zero.rank_zero_only.rank", 0)
    joined = [joins(kind) for kind in (stock, getattr(lightning_sagemaker, name))]
    assert joined[0] == joined[1] == {"rank": 0, "world_size": 2, "timeout": timedelta(seconds=9), "device_id": None}


def joins(kind: type) -> dict[str, object]:
    """How the first of two processes joins the process group."""
    strategy = kind(
        accelerator=CPUAccelerator(),
        parallel_devices=[torch.device("cpu")] * 2,
        cluster_environment=LightningEnvironment(),
        process_group_backend="gloo",
        timeout=timedelta(seconds=9),
        start_method="fork",
    )
    with mock.patch("torch.distributed.init_process_group") as init, mock.patch("atexit.register"):
        strategy.setup_environment()
    assert [call.args for call in init.call_args_list] == [("gloo",)]
    return init.call_args.kwargs
