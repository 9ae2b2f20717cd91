# SPDX-License-Identifier: Apache-2.0
"""A misspelt argument of a strategy is refused when it is made, not when torch wraps the model, or never."""

import dataclasses
from datetime import timedelta

import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch import Trainer

from lightning_sagemaker import SageMakerDDPStrategy, SMDDPStrategy
from lightning_sagemaker.job import Launcher, SageMakerJob
from lightning_sagemaker.strategies.ddp import FabricSageMakerDDPStrategy
from lightning_sagemaker.strategies.factory import (
    fabric_sagemaker_strategy,
    fabric_smp_strategy,
    sagemaker_strategy,
    smp_strategy,
)
from lightning_sagemaker.strategies.model_parallel import SMPStrategy
from lightning_sagemaker.strategies.sharded import FabricSMPShardedStrategy, SMPShardedStrategy
from lightning_sagemaker.strategies.smddp import FabricSMDDPStrategy

ALONE = SageMakerJob()
LAUNCHED = {"launcher": Launcher.TORCHRUN, "global_rank": 0, "local_rank": 0, "world_size": 2, "local_world_size": 2}
TWO = SageMakerJob(in_container=True, hosts=("algo-1",), current_host="algo-1", **LAUNCHED)
PIPELINE = {"partitions": 2, "microbatches": 4, "ddp": True}
SHARDED = {"sharded_data_parallel_degree": 2, "ddp": True}

TRAINER = (SageMakerDDPStrategy, SMDDPStrategy)
FABRIC = (FabricSageMakerDDPStrategy, FabricSMDDPStrategy)
WRAPPER = {
    "find_unused_parameters": True,
    "gradient_as_bucket_view": True,
    "static_graph": True,
    "bucket_cap_mb": 50,
    "broadcast_buffers": False,
}
OWN = {"process_group_backend": "gloo", "timeout": timedelta(minutes=5), "start_method": "popen"}


@pytest.fixture(params=[ALONE, TWO], ids=["one process", "two processes"])
def job(request, monkeypatch):
    monkeypatch.setattr(SageMakerJob, "from_environment", classmethod(lambda cls, *_: request.param))
    return request.param


@pytest.mark.parametrize("make", [*TRAINER, *FABRIC, sagemaker_strategy, fabric_sagemaker_strategy])
def test_a_misspelt_argument_is_named_with_the_right_one(job, make):
    with pytest.raises(TypeError, match=r"find_unused_paramters=True.*HINT: did you mean find_unused_parameters\?"):
        make(find_unused_paramters=True)
    with pytest.raises(TypeError, match=r"DDPStrategy was given proces_group_backend.*mean process_group_backend\?"):
        make(proces_group_backend="gloo")
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("make", [*TRAINER, *FABRIC])
def test_what_is_like_nothing_is_refused_with_all_there_is(make):
    with pytest.raises(
        TypeError, match=r"no argument 'colour'\. HINT: It accepts .*bucket_cap_mb.*job.*timeout"
    ) as caught:
        make(job=TWO, colour="red")
    assert "did you mean" not in str(caught.value)
    assert "device_ids" not in str(caught.value)


@pytest.mark.parametrize("name", ["module", "device_ids"])
def test_what_lightning_gives_to_the_wrapper_is_refused(name):
    with pytest.raises(TypeError, match=f"no argument {name!r}"):
        SMDDPStrategy(job=TWO, **{name: None})


def test_right_arguments_reach_the_trainers_strategy(job):
    for kind in TRAINER:
        built = Trainer(strategy=kind(**WRAPPER, **OWN), accelerator="cpu", logger=False).strategy
        assert built._ddp_kwargs == WRAPPER
        assert built._timeout == OWN["timeout"]
        kind(ddp_comm_hook=None, ddp_comm_wrapper=None, model_averaging_period=None, parallel_devices=None)
    assert sagemaker_strategy(**WRAPPER, **OWN)._ddp_kwargs == WRAPPER


def test_right_arguments_reach_fabrics_strategy(job):
    for kind in FABRIC:
        assert Fabric(strategy=kind(**WRAPPER, **OWN), accelerator="cpu").strategy._ddp_kwargs == WRAPPER
    assert fabric_sagemaker_strategy(**WRAPPER, **OWN)._ddp_kwargs == WRAPPER


def test_a_subclass_may_have_arguments_of_its_own():
    class Own(SMDDPStrategy):
        def __init__(self, *args, colour="red", **kwargs):
            super().__init__(*args, **kwargs)
            self.colour = colour

    assert Own(job=TWO, colour="blue", static_graph=True)._ddp_kwargs == {"static_graph": True}
    with pytest.raises(TypeError, match=r"did you mean colour\?"):
        Own(job=TWO, color="blue")


@pytest.mark.parametrize("make", [smp_strategy, SMPStrategy, SMPShardedStrategy, FabricSMPShardedStrategy])
def test_misspelt_parameters_are_not_taken_for_none(job, make):
    with pytest.raises(TypeError, match=r"paramters=.*HINT: did you mean parameters\?"):
        make(paramters=PIPELINE)


@pytest.mark.parametrize(
    ("make", "parameters"),
    [(smp_strategy, PIPELINE), (smp_strategy, SHARDED), (SMPStrategy, PIPELINE), (fabric_smp_strategy, SHARDED)],
)
def test_model_parallelism_takes_its_own_arguments(make, parameters):
    job = dataclasses.replace(TWO, model_parallel_parameters=parameters)
    arguments = {
        "save_distributed_checkpoint": True,
        "activation_checkpointing": False,
        "timeout": timedelta(minutes=5),
    }
    assert make(job=job, **arguments)._timeout == arguments["timeout"]
    with pytest.raises(TypeError, match=r"did you mean activation_checkpointing\?"):
        make(job=job, activation_checkpoint=True)
