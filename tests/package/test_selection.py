# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from lightning_sagemaker.job import Distribution, Launcher, SageMakerJob, SageMakerJobError
from lightning_sagemaker.selection import Selection, select_gathering, select_smddp_backend, select_strategy

LAPTOP = SageMakerJob()
REAL = SageMakerJob(
    in_container=True,
    hosts=("algo-1", "algo-2"),
    current_host="algo-1",
    num_nodes=2,
    num_gpus=8,
    instance_type="ml.p4d.24xlarge",
    distribution=Distribution.SMDDP,
    launcher=Launcher.SMDDPRUN,
    global_rank=0,
    local_rank=0,
    world_size=16,
    local_world_size=8,
    smddp_version="2.6.0",
)


def but(job: SageMakerJob, **changes) -> SageMakerJob:
    return dataclasses.replace(job, **changes)


GATHERS = but(REAL, launcher=Launcher.TORCHRUN, distribution=Distribution.MODEL_PARALLEL)
SHARDS = {"hybrid_shard_degree": 8}
ONE_HOST = {"hosts": ("algo-1",), "num_nodes": 1, "world_size": 8}


@pytest.mark.parametrize(
    ("job", "name", "backend", "words"),
    [
        (
            LAPTOP,
            "single_device",
            "gloo",
            "Nothing here asks for more than one process, unless devices or num_nodes do.",
        ),
        (but(LAPTOP, num_gpus=1), "single_device", "nccl", "Nothing here asks"),
        (but(LAPTOP, num_gpus=4), "ddp", "nccl", "There are several processes."),
        (but(LAPTOP, launcher=Launcher.TORCHRUN, world_size=2), "ddp", "gloo", "There are several processes."),
        (
            but(LAPTOP, launcher=Launcher.TORCHRUN, world_size=1, num_gpus=4),
            "single_device",
            "nccl",
            "Nothing here asks",
        ),
        (REAL, "smddp", "smddp", "asks for SMDDP. SMDDP 2.6.0 is installed and supports ml.p4d.24xlarge."),
        (but(REAL, smddp_version=None), "ddp", "nccl", "asks for SMDDP. AWS's SMDDP is not installed in this image"),
        (but(REAL, num_gpus=0), "ddp", "gloo", "asks for SMDDP. SMDDP needs GPUs and this host has none, so gloo"),
        (but(REAL, instance_type="ml.g5.48xlarge"), "ddp", "nccl", "SMDDP does not support ml.g5.48xlarge"),
        (but(REAL, **ONE_HOST), "ddp", "nccl", "has no benefit on one host"),
        (but(REAL, simulated=True, smddp_version=None, num_gpus=0), "smddp", "smddp", "the open shim stands in"),
        (but(REAL, simulated=True, smddp_version=None, **ONE_HOST), "smddp", "smddp", "the open shim stands in"),
        (but(REAL, distribution=Distribution.TORCH_DISTRIBUTED), "ddp", "nccl", "asks for torch_distributed"),
        (but(REAL, distribution=Distribution.NONE), "ddp", "nccl", "the job sets no distribution"),
        (but(REAL, model_parallel_parameters={"partitions": 2}), "smp", "nccl", "asks for model parallelism"),
        (
            but(GATHERS, model_parallel_parameters=SHARDS),
            "smddp_fsdp",
            "smddp",
            "which SMDDP gathers. SMDDP started by",
        ),
        (
            but(GATHERS, model_parallel_parameters={**SHARDS, "tensor_parallel_degree": 2}),
            "smp",
            "nccl",
            "asks for model",
        ),
        (but(GATHERS, model_parallel_parameters={"hybrid_shard_degree": 1}), "smp", "nccl", "asks for model"),
        (but(GATHERS, model_parallel_parameters={"no such": 1}), "smp", "nccl", "asks for model"),
        (but(GATHERS, model_parallel_parameters=SHARDS, smddp_version="1.8.0"), "smp", "nccl", "asks for model"),
        (but(GATHERS, model_parallel_parameters=SHARDS, smddp_version=None), "smp", "nccl", "asks for model"),
        (but(REAL, model_parallel_parameters=SHARDS), "smp", "nccl", "asks for model"),
        (
            but(GATHERS, model_parallel_parameters=SHARDS, simulated=True, smddp_version=None),
            "smddp_fsdp",
            "smddp",
            "The open shim stands in",
        ),
    ],
)
def test_select_strategy(job, name, backend, words):
    selection = select_strategy(job)
    assert (selection.name, selection.backend) == (name, backend)
    assert words in selection.reason
    assert selection.reason.endswith(".")


@pytest.mark.parametrize(
    ("job", "backend", "words"),
    [
        (LAPTOP, "smddp", "This is not a SageMaker job, so the open shim"),
        (but(LAPTOP, num_gpus=8, smddp_version="2.6.0", launcher=Launcher.MPI), "smddp", "SMDDP 2.6.0 is installed."),
        (
            but(LAPTOP, num_gpus=8, smddp_version="2.6.0", launcher=Launcher.TORCHRUN),
            "nccl",
            "SMDDP started by torchrun takes AllGather, and AllReduce falls back to nccl, so nccl reduces the gradients.",
        ),
        (but(REAL, launcher=Launcher.TORCHRUN), "nccl", "falls back to nccl, so nccl reduces the gradients."),
        (
            but(REAL, smddp_variables={"SMDATAPARALLEL_OPTIMIZE_SDP": "true"}),
            "nccl",
            "OPTIMIZE_SDP=true takes AllGather",
        ),
        (but(REAL, launcher=Launcher.NONE), "nccl", "for processes started by torchrun or mpirun, so nccl"),
        (but(REAL, instance_type="ml.p3.16xlarge"), "nccl", "The guide of SMDDP 2 does not list ml.p3.16xlarge"),
        (but(REAL, instance_type="ml.p3.16xlarge", smddp_version="1.8.0"), "smddp", "supports ml.p3.16xlarge."),
        (
            but(REAL, simulated=True, smddp_version=None, num_gpus=0, launcher=Launcher.TORCHRUN),
            "smddp",
            "stands in for AWS's SMDDP. SMDDP started by torchrun takes AllGather, and AllReduce falls back to gloo.",
        ),
        (but(REAL, simulated=True, smddp_version=None), "smddp", "This is a simulated job, so the open shim"),
        (REAL, "smddp", "is installed and supports"),
        (but(REAL, **ONE_HOST), "smddp", "is installed and supports"),  # asked for in the script: honoured
        (but(REAL, smddp_version=None), "nccl", "so nccl reduces the gradients."),
        (but(REAL, smddp_version=None, num_gpus=0), "gloo", "so gloo reduces the gradients."),
    ],
)
def test_select_smddp_backend(job, backend, words):
    selection = select_smddp_backend(job)
    assert (selection.name, selection.backend) == ("smddp", backend)
    assert words in selection.reason


def test_a_malformed_buffer_is_an_error_before_any_process_group():
    job = but(REAL, smddp_variables={"SMDDP_AG_SORT_BUFFER_SIZE_BYTES": "1"})
    with pytest.raises(SageMakerJobError, match="multiples of 8192 bytes. HINT"):
        select_strategy(job)


def test_selection_is_a_value():
    assert select_strategy(LAPTOP) == select_strategy(LAPTOP)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Selection("ddp", "gloo", "because").name = "smddp"


def test_a_bare_machine_gathers_by_the_shim():
    """Lightning starts the processes there, and SMDDP's documents say nothing about that."""
    selection = select_gathering(LAPTOP)
    assert (selection.name, selection.backend) == ("smddp_fsdp", "smddp")
    assert "open shim" in selection.reason
    assert select_gathering(but(REAL, launcher=Launcher.NONE)).backend == "nccl"
