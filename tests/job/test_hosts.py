# SPDX-License-Identifier: Apache-2.0
"""Each host knows its place, and groups divide the hosts; else ranks would wait for others that do not exist."""

import json

import pytest

from lightning_sagemaker.job import SageMakerJob, SageMakerJobError

HOSTS = ["algo-1", "algo-2", "algo-3"]


def read(groups, **variables):
    config = {"hosts": HOSTS, "current_host": "algo-2", "instance_groups": groups}
    return SageMakerJob.from_environment(
        {"TRAINING_JOB_NAME": "job-1", "SM_RESOURCE_CONFIG": json.dumps(config), **variables}, "/nonexistent"
    )


def group(name, *hosts):
    return {"instance_group_name": name, "instance_type": "ml.c5.xlarge", "hosts": list(hosts)}


@pytest.mark.parametrize(
    ("groups", "variables"),
    [
        ([group("a", "algo-1"), group("b", "algo-3")], {"SM_CURRENT_INSTANCE_GROUP": "a"}),  # this host in none
        ([group("a", "algo-1"), group("b", "algo-3")], {"SM_CURRENT_INSTANCE_GROUP": "c"}),
        ([group("a", *HOSTS), group("b", "algo-2")], {"SM_DISTRIBUTION_INSTANCE_GROUPS": '["a", "b"]'}),  # in two
        ([group("a", "algo-1"), group("a", "algo-2", "algo-3")], {}),  # which of them trains?
        ([group("a", *HOSTS, "algo-4")], {"SM_DISTRIBUTION_INSTANCE_GROUPS": '["a"]'}),  # a host that is not there
    ],
)
def test_groups_that_do_not_divide_the_hosts(groups, variables):
    with pytest.raises(SageMakerJobError, match=r"The instance groups are 'a' with \[.*this is 'algo-2'. HINT: "):
        read(groups, **variables)


def test_groups_that_do():
    assert read([group("a", "algo-1"), group("b", "algo-3", "algo-2")]).hosts == ("algo-3", "algo-2")
    assert read([{"instance_group_name": "a"}]).hosts == tuple(HOSTS)  # without a list of hosts


def test_one_of_several_hosts_has_to_know_which():
    """All of them would be the first, with rank 0, and wait for the others."""
    env = {"TRAINING_JOB_NAME": "job-1", "SM_HOSTS": json.dumps(HOSTS)}
    with pytest.raises(SageMakerJobError, match="nothing says which of them this is. HINT: set SM_CURRENT_HOST"):
        SageMakerJob.from_environment(env, "/nonexistent")
    ranks = {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "MASTER_ADDR": "algo-1", "MASTER_PORT": "7777"}
    assert SageMakerJob.from_environment(env | ranks, "/nonexistent").node_rank == 1
    assert SageMakerJob.from_environment(env | {"SM_CURRENT_HOST": "algo-3"}, "/nonexistent").node_rank == 2
