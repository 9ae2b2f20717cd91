# SPDX-License-Identifier: Apache-2.0
"""The SDK's ``distribution`` dictionaries, and the flags that the container gets."""

import json
from pathlib import Path

import pytest

from lightning_sagemaker.launch.spec.distribution import DistributionRequest, parse_distribution
from lightning_sagemaker.simulator.containers.toolkit import framework_parameters
from tests.launch.jobs import SMDDP, partitions
from tests.launch.seeds import WAYS


@pytest.mark.parametrize(
    ("given", "kind", "flags"),
    [
        (None, "none", {}),
        (SMDDP, "smddp", {"sagemaker_distributed_dataparallel_enabled": True}),
        ({"smdistributed": {"dataparallel": {"enabled": True, "custom_mpi_options": "-x A"}}}, "smddp", {}),
        (
            {"smdistributed": {"dataparallel": {"enabled": True, "custom_mpi_options": None}}},
            "smddp",
            {"sagemaker_distributed_dataparallel_custom_mpi_options": ""},
        ),
        ({"smdistributed": {"dataparallel": {"enabled": False}}}, "none", {}),
        ({"pytorchddp": {"enabled": True}}, "ddp", {"sagemaker_pytorch_ddp_enabled": True}),
        ({"torch_distributed": {"enabled": True}}, "torch_distributed", {"sagemaker_torch_distributed_enabled": True}),
        ({"mpi": {"enabled": True, "processes_per_host": 4}}, "mpi", {"sagemaker_mpi_num_of_processes_per_host": 4}),
        ({"mpi": {"enabled": True, "processes_per_host": "4"}}, "mpi", {"sagemaker_mpi_num_of_processes_per_host": 4}),
        (partitions(2), "smp", {"sagemaker_mpi_enabled": True, "sagemaker_distributed_dataparallel_enabled": False}),
        (WAYS["smp"]["distribution"], "smp", {"sagemaker_torch_distributed_enabled": True}),
    ],
)
def test_the_estimators_dictionaries(given, kind, flags):
    request = parse_distribution(given)
    assert request.kind == kind
    assert flags.items() <= request.flags.items()
    json.dumps(request.to_json())


@pytest.mark.parametrize("kind", ["smddp", "ddp", "torch_distributed", "mpi"])
def test_the_flags_are_those_of_the_simulated_containers(kind):
    """Which are held to AWS's own toolkit elsewhere."""
    from lightning_sagemaker.simulator.contract import Cluster

    cluster = Cluster(
        job_name="x", hosts=("algo-1",), processes_per_host=1, distribution=kind, contract="toolkit", instance_type="t",
        network_interface="lo", main_address="a", main_port=1, entry_point="", arguments=(), code=Path(), hyperparameters={},
        channels=(), gpus_per_host=0, region="r",
    )  # fmt: skip
    theirs = framework_parameters(cluster)
    for name in ("sagemaker_instance_type", "sagemaker_mpi_num_of_processes_per_host"):
        theirs.pop(name, None)
    assert DistributionRequest(kind, uses_torchrun=kind != "mpi").flags == theirs
