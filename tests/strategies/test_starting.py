# SPDX-License-Identifier: Apache-2.0
"""How processes come about, beside Lightning's own ``DDPStrategy`` in the same environment."""

import itertools
import os
import sys
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric import connector as fabric_connector
from lightning.fabric.strategies import STRATEGY_REGISTRY
from lightning.fabric.strategies import DDPStrategy as FabricDDPStrategy
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from lightning.pytorch.trainer.connectors import accelerator_connector as trainer_connector
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lightning_sagemaker import (
    FabricSageMakerDDPStrategy,
    FabricSMDDPStrategy,
    SageMakerDDPStrategy,
    SMDDPStrategy,
)
from lightning_sagemaker.job import SageMakerJobError
from lightning_sagemaker.strategies import starting

BY_HAND = {
    "LOCAL_RANK": "1",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "NODE_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29511",
}
"""Of the second of two processes on this machine."""
SUBSETS = [chosen for size in range(len(BY_HAND) + 1) for chosen in itertools.combinations(BY_HAND, size)]
KINDS = {"Trainer": Trainer, "Fabric": Fabric}


def describe(kind, strategy: str, environment: dict[str, str], devices: int = 2) -> dict:
    """What a strategy makes of an environment, without starting anything."""
    with mock.patch.dict(os.environ, environment):
        quiet = {"logger": False, "enable_progress_bar": False} if kind is Trainer else {}
        made = kind(strategy=strategy, accelerator="cpu", devices=devices, **quiet).strategy
        if hasattr(made, "job"):
            starting.check(made)
        cluster = made.cluster_environment
        return {
            "ranks": (made.global_rank, made.local_rank, made.node_rank, made.world_size, made.num_nodes),
            "device": str(made.root_device),
            "sampler": made.distributed_sampler_kwargs,
            "address": cluster.main_address,
            "port": cluster.main_port if "MASTER_PORT" in environment else None,
            "starts": not cluster.creates_processes_externally,
            "launcher": type(made.launcher).__name__,
        }


@pytest.mark.parametrize("strategy", ["smddp", "sagemaker"])
@pytest.mark.parametrize("chosen", SUBSETS, ids="-".join)
def test_each_set_of_variables_is_read_as_by_ddp(chosen, strategy):
    """But where the processes would choose a port each, and wait for one another: that is an error."""
    environment = {name: BY_HAND[name] for name in chosen}
    if "LOCAL_RANK" in chosen and "MASTER_PORT" not in chosen:
        with pytest.raises(SageMakerJobError, match=r"MASTER_PORT is not.*HINT"):
            describe(Trainer, strategy, environment)
    else:
        assert describe(Trainer, strategy, environment) == describe(Trainer, "ddp", environment)


def test_fabric_too():
    for chosen in (("LOCAL_RANK", "MASTER_PORT"), ("RANK", "WORLD_SIZE"), ("NODE_RANK",)):
        environment = {name: BY_HAND[name] for name in chosen}
        assert describe(Fabric, "smddp", environment) == describe(Fabric, "ddp", environment)


def test_one_process_needs_no_port():
    assert describe(Trainer, "smddp", {"LOCAL_RANK": "0"}, devices=1) == describe(
        Trainer, "ddp", {"LOCAL_RANK": "0"}, devices=1
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4 is set, but devices=2 makes it 2"),
        ({"RANK": "0"}, "RANK=0 is set, but devices=2 makes it 1"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK=2 is out of range for devices=2"),
    ],
)
def test_what_excludes_each_other_is_an_error(changed, words):
    environment = {"LOCAL_RANK": "1", "MASTER_PORT": "29511"} | changed
    with pytest.raises(SageMakerJobError, match=f"{words}.*HINT"):
        describe(Trainer, "smddp", environment)


@pytest.mark.parametrize("missing", ["RANK", "LOCAL_RANK", "WORLD_SIZE"])
def test_torchruns_ranks_must_all_be_there_as_for_ddp(missing):
    environment = {"TORCHELASTIC_RUN_ID": "none"} | {name: BY_HAND[name] for name in BY_HAND if name != missing}
    with pytest.raises(KeyError):
        describe(Trainer, "ddp", environment)
    with pytest.raises(SageMakerJobError, match=f"{missing} is not set"):
        describe(Trainer, "smddp", environment)


@pytest.mark.parametrize("registry", [StrategyRegistry, STRATEGY_REGISTRY], ids=["Trainer", "Fabric"])
def test_each_name_of_ddp_has_its_like(registry):
    """With the same arguments."""
    names = [name for name in registry if name == "ddp" or name.startswith("ddp_")]
    assert len(names) >= 5
    for name in names:
        ours, theirs = (registry.get(prefix + name[3:]) for prefix in ("smddp", "ddp"))
        assert (ours._start_method, ours._ddp_kwargs) == (theirs._start_method, theirs._ddp_kwargs)


EARLY = (
    *("local_rank", "global_rank", "node_rank", "world_size", "is_global_zero", "root_device", "parallel_devices"),
    *("num_nodes", "num_processes", "distributed_sampler_kwargs", "process_group_backend", "launcher", "accelerator"),
)


@pytest.mark.parametrize("name", EARLY)
def test_what_is_read_before_there_is_a_trainer_is_ddps(name):
    def read(strategy):
        try:
            return getattr(strategy, name)
        except Exception as error:
            return type(error)

    ours = (SMDDPStrategy, SageMakerDDPStrategy), (FabricSMDDPStrategy, FabricSageMakerDDPStrategy)
    for stock, kinds in zip((DDPStrategy, FabricDDPStrategy), ours, strict=True):
        assert [read(kind()) for kind in kinds] == [read(stock())] * 2


@pytest.fixture
def notebook(monkeypatch):
    """Lightning reads it when it is imported; a test that runs in a real interpreter is in tests/distributed."""
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    for connector in (trainer_connector, fabric_connector):
        monkeypatch.setattr(connector, "_IS_INTERACTIVE", True)


@pytest.mark.usefixtures("notebook")
@pytest.mark.parametrize("kind", KINDS)
def test_in_a_notebook_what_chooses_forks(kind):
    auto = KINDS[kind](strategy="auto", accelerator="cpu", devices=2).strategy
    assert auto._start_method == "fork"
    for name in ("sagemaker", "smddp_notebook", "smddp_fork", "sagemaker_notebook"):
        ours = KINDS[kind](strategy=name, accelerator="cpu", devices=2).strategy
        assert (ours._start_method, type(ours.launcher)) == ("fork", type(auto.launcher))
    for name in ("sagemaker", "smddp"):
        assert KINDS[kind](strategy=name, accelerator="cpu", devices=1).strategy.launcher is None


@pytest.mark.usefixtures("notebook")
@pytest.mark.parametrize(("kind", "error"), [("Trainer", MisconfigurationException), ("Fabric", RuntimeError)])
def test_in_a_notebook_what_would_run_the_script_again_is_refused_as_ddp_is(kind, error):
    for name, words in (("ddp", "not compatible with an interactive"), ("smddp", "smddp_notebook")):
        with pytest.raises(error, match=words):
            KINDS[kind](strategy=name, accelerator="cpu", devices=2)


def test_under_a_launcher_the_start_method_is_not_used():
    ranks = BY_HAND | {"TORCHELASTIC_RUN_ID": "none"}
    found = describe(Trainer, "smddp_spawn", ranks)
    assert (found["launcher"], found["starts"]) == ("_SubprocessScriptLauncher", False)


def left_behind(strategy: str) -> set[str]:
    """Variables that two fits of a single process leave."""
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    with mock.patch.dict(os.environ):
        os.environ.pop("OMP_NUM_THREADS", None)  # Lightning sets it where it is not set
        before = set(os.environ)
        Trainer(strategy=strategy, accelerator="cpu", devices=2, logger=False)
        assert set(os.environ) == before
        for _ in range(2):  # the second finds what the first has left
            Trainer(strategy=strategy, accelerator="cpu", devices=1, max_steps=1, **quiet).fit(BoringModel())
        dist.destroy_process_group()  # the next test in this process would use it
        return set(os.environ) - before


def test_no_variable_is_left_for_processes_that_others_start():
    assert left_behind("smddp") == left_behind("ddp")


def test_what_a_fork_server_sends_has_memory_of_its_own():
    """Modules arrive in memory that all processes share; ``test_starting.py`` of ``distributed`` trains so."""
    strategy, sent = SMDDPStrategy(start_method="forkserver"), []
    Trainer(strategy=strategy, accelerator="cpu", devices=2, logger=False)
    module = torch.nn.BatchNorm1d(2).share_memory()
    with mock.patch.object(type(strategy.launcher), "launch", lambda _, function, *args: sent.append((function, args))):
        strategy.launcher.launch(lambda model, number: (model, number), module, 3)
    ((function, arguments),) = sent
    received, number = function(*arguments)
    assert number == 3
    assert not any(tensor.is_shared() for tensor in (*received.parameters(), *received.buffers()))
