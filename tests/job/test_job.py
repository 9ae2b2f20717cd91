# SPDX-License-Identifier: Apache-2.0
import json
import string
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightning_sagemaker.job import SPAWNED_BY_LIGHTNING, Distribution, Launcher, SageMakerJob, SageMakerJobError

NOWHERE = "/nonexistent"
CONTAINER = {
    "TRAINING_JOB_NAME": "job-1",
    "SM_HOSTS": '["algo-1", "algo-2"]',
    "SM_CURRENT_HOST": "algo-2",
    "SM_NUM_GPUS": "0",
    "SM_NUM_CPUS": "4",
}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "algo-1",
    "MASTER_PORT": "7777",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


def read(env, root=NOWHERE):
    return SageMakerJob.from_environment(env, root)


def test_a_laptop():
    job = read({})
    assert (job.in_container, job.launcher, job.hosts, job.num_nodes) == (False, Launcher.NONE, ("localhost",), 1)
    assert (job.global_rank, job.world_size, job.distribution) == (None, None, Distribution.NONE)
    assert job.main_address == "127.0.0.1"


def test_local_ignores_the_environment(monkeypatch):
    monkeypatch.setenv("TRAINING_JOB_NAME", "job-1")
    monkeypatch.setenv("SM_HOSTS", "not JSON")
    assert SageMakerJob.local().hosts == ("localhost",)


def test_torchrun_on_any_cluster():
    job = read(TORCHRUN)
    assert (job.in_container, job.launcher, job.hosts) == (False, Launcher.TORCHRUN, ("node-0", "node-1"))
    assert (job.node_rank, job.global_rank, job.local_rank, job.world_size) == (1, 3, 1, 4)


def test_mpirun_on_any_cluster():
    job = read(MPIRUN | {"MASTER_ADDR": "head", "MASTER_PORT": "1234"})
    assert (job.launcher, job.node_rank, job.main_address, job.main_port) == (Launcher.MPI, 1, "head", 1234)


def test_mpirun_on_one_machine_agrees_on_a_port_by_itself():
    one_host = MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3", "PMIX_NAMESPACE": "42"}
    first = one_host | {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_RANK": "0"}
    assert read(one_host).main_port == read(first).main_port
    assert read(one_host).main_port != read(one_host | {"PMIX_NAMESPACE": "43"}).main_port


def test_mpirun_by_node():
    """`--map-by node` deals the ranks out in turn: rank 1 is the first of the second host."""
    job = read(MPIRUN | {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "MASTER_ADDR": "head"})
    assert (job.node_rank, job.global_rank) == (1, 1)
    assert "--map-by node" in job.notes[0]


def test_smddprun():
    env = CONTAINER | MPIRUN | {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "SMDATAPARALLEL_LOCAL_RANK": "1"}
    assert read(env).launcher is Launcher.SMDDPRUN
    assert read({k: v for k, v in env.items() if k != "RANK"}).launcher is Launcher.MPI


def test_smddp_server_gives_the_address_where_nothing_else_does():
    job = read(CONTAINER | MPIRUN | {"SMDATAPARALLEL_SERVER_ADDR": "algo-1", "SMDATAPARALLEL_SERVER_PORT": "7592"})
    assert (job.main_address, job.main_port) == ("algo-1", 7594)


def test_no_launcher_on_several_hosts():
    job = read(CONTAINER)
    assert (job.node_rank, job.num_nodes, job.main_address, job.main_port) == (1, 2, "algo-1", 7777)


def test_a_left_over_loopback_address_is_not_believed():
    assert read(CONTAINER | {"MASTER_ADDR": "localhost"}).main_address == "algo-1"
    assert read(CONTAINER | {"MASTER_ADDR": "127.0.0.1", "LIGHTNING_SAGEMAKER_SIMULATED": "1"}).simulated


def test_files_beat_variables(tmp_path):
    config = {"current_host": "algo-1", "hosts": ["algo-1", "algo-2"], "network_interface_name": "eth7"}
    write(tmp_path, "resourceconfig", config)
    write(tmp_path, "hyperparameters", {"epochs": "3", "sagemaker_program": '"train.py"', "name": '"bert"', "v": "007"})
    write(tmp_path, "inputdataconfig", {"train": {}, "my-data": {}})
    job = read(CONTAINER | {"SM_NETWORK_INTERFACE_NAME": "eth0"}, tmp_path)
    assert (job.current_host, job.network_interface) == ("algo-1", "eth7")
    assert job.hyperparameters == {"epochs": 3, "name": "bert", "v": "007"}
    assert job.channels["my-data"] == tmp_path / "input" / "data" / "my-data"
    assert job.sources["current_host"] == "resourceconfig.json"
    assert job.checkpoint_dir == tmp_path / "checkpoints"


def test_files_alone_make_a_job(tmp_path):
    write(tmp_path, "resourceconfig", {"current_host": "algo-1", "hosts": ["algo-1"]})
    write(tmp_path, "hyperparameters", {"sagemaker_torch_distributed_enabled": "true"})
    job = read({"SAGEMAKER_BASE_DIR": str(tmp_path)}, None)
    assert (job.in_container, job.distribution) == (True, Distribution.TORCH_DISTRIBUTED)


def test_a_dash_in_a_channel(tmp_path):
    env = CONTAINER | {"SM_CHANNELS": '["a-b", "c-d", "e-f"]', "SM_CHANNEL_A-B": "/1", "SM_CHANNEL_C_D": "/2"}
    channels = read(env, tmp_path).channels
    assert channels == {"a-b": Path("/1"), "c-d": Path("/2"), "e-f": tmp_path / "input" / "data" / "e-f"}


def write(root, name, content):
    folder = root / "input" / "config"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content))


SMDDP_KEY = "sagemaker_distributed_dataparallel_enabled"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, Distribution.NONE),
        ({"SM_FRAMEWORK_PARAMS": ""}, Distribution.NONE),
        ({"SM_FRAMEWORK_PARAMS": "{}"}, Distribution.NONE),
        ({"SM_FRAMEWORK_PARAMS": f'{{"{SMDDP_KEY}": true}}'}, Distribution.SMDDP),
        ({"SM_FRAMEWORK_PARAMS": f'{{"{SMDDP_KEY}": "True"}}'}, Distribution.SMDDP),
        ({"SM_FRAMEWORK_PARAMS": f'{{"{SMDDP_KEY}": "false"}}'}, Distribution.NONE),
        ({"SM_FRAMEWORK_PARAMS": f'{{"{SMDDP_KEY}": false, "sagemaker_mpi_enabled": "true"}}'}, Distribution.MPI),
        (
            {"SM_FRAMEWORK_PARAMS": '{"sagemaker_mpi_enabled": 1, "sagemaker_torch_distributed_enabled": 1}'},
            Distribution.MPI,
        ),
        ({"SM_FRAMEWORK_PARAMS": '{"sagemaker_pytorch_ddp_enabled": true}'}, Distribution.DDP),
        ({"SM_HPS": f'{{"{SMDDP_KEY}": true}}'}, Distribution.SMDDP),
        ({"SM_HPS": '{"distribution": "smddp"}'}, Distribution.SMDDP),
        ({"SM_HPS": '{"distribution": "normal"}'}, Distribution.NONE),
        ({"SM_DISTRIBUTED_CONFIG": '{"process_count_per_node": 2, "smp": null}'}, Distribution.TORCH_DISTRIBUTED),
        ({"SM_DISTRIBUTED_CONFIG": '{"process_count_per_node": 2, "distribution": "smddp"}'}, Distribution.SMDDP),
        ({"SM_DISTRIBUTED_CONFIG": '{"mpi_additional_options": null}'}, Distribution.MPI),
        (
            {"SM_DISTRIBUTED_CONFIG": '{"smp": {"tensor_parallel_degree": 2, "random_seed": null}}'},
            Distribution.MODEL_PARALLEL,
        ),
        ({"SM_HP_MP_PARAMETERS": '{"partitions": 2}'}, Distribution.MODEL_PARALLEL),
        ({"SM_HPS": '{"mp_parameters": ""}'}, Distribution.NONE),
    ],
)
def test_what_was_asked_for(env, expected):
    assert read(CONTAINER | env).distribution is expected


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (CONTAINER | {"SM_HOSTS": '["algo-1"'}, "SM_HOSTS is not valid JSON"),
        (CONTAINER | {"SM_HOSTS": '{"a": 1}'}, "SM_HOSTS must hold a JSON list"),
        (CONTAINER | {"SM_HOSTS": '["a", "a"]'}, "SM_HOSTS holds"),
        (CONTAINER | {"SM_FRAMEWORK_PARAMS": "{"}, "SM_FRAMEWORK_PARAMS is not valid JSON"),
        (CONTAINER | {"SM_CURRENT_HOST": "algo-9"}, "current host 'algo-9' (SM_CURRENT_HOST) is not among"),
        (CONTAINER | {"SM_HPS": '{"mp_parameters": 3}'}, "mp_parameters is 3"),
        (CONTAINER | TORCHRUN | {"RANK": "4"}, "RANK=4 is out of range for WORLD_SIZE=4"),
        (CONTAINER | TORCHRUN | {"RANK": "-1"}, "RANK='-1' is not an integer"),
        (CONTAINER | TORCHRUN | {"LOCAL_RANK": "2"}, "LOCAL_RANK=2 is out of range for LOCAL_WORLD_SIZE=2"),
        (CONTAINER | TORCHRUN | {"GROUP_RANK": "2"}, "GROUP_RANK=2 is out of range"),
        (TORCHRUN | {"MASTER_ADDR": ""}, "MASTER_ADDR is not"),
        (TORCHRUN | {"MASTER_PORT": "", "TORCHELASTIC_RUN_ID": ""}, "MASTER_PORT is not"),
        (TORCHRUN | {"MASTER_PORT": "http"}, "MASTER_PORT='http' is not an integer"),
        (CONTAINER | TORCHRUN | {"WORLD_SIZE": "8"}, "WORLD_SIZE=8 contradicts GROUP_WORLD_SIZE=2"),
        (CONTAINER | TORCHRUN | {"WORLD_SIZE": "8", "GROUP_WORLD_SIZE": ""}, "needs 4 hosts, but the job has 2"),
        (CONTAINER | TORCHRUN | {"WORLD_SIZE": "5"}, "WORLD_SIZE=5 contradicts LOCAL_WORLD_SIZE=2"),
        (CONTAINER | {"LOCAL_RANK": "0"}, "LOCAL_RANK=0 is set, but no launcher"),
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK='x' is not an integer"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "", "WORLD_SIZE": "5"}, "set LOCAL_WORLD_SIZE"),
        (CONTAINER | TORCHRUN | {"SM_NUM_GPUS": "1"}, "SM_NUM_GPUS=1 GPUs"),
        (MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": ""}, "OMPI_COMM_WORLD_LOCAL_SIZE is not set"),
        (MPIRUN | {"OMPI_COMM_WORLD_SIZE": "5"}, "the same number of processes"),
        (MPIRUN | {"RANK": "1", "SMDATAPARALLEL_LOCAL_RANK": "0"}, "RANK=1 contradicts OMPI_COMM_WORLD_RANK=3"),
    ],
)
def test_bad_input_is_one_clear_error(env, words):
    with pytest.raises(SageMakerJobError) as caught:
        read(env)
    assert words in str(caught.value)
    assert "HINT: " in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[]", "\udcff", None])
def test_a_bad_file_is_named(tmp_path, content):
    folder = tmp_path / "input" / "config"
    folder.mkdir(parents=True)
    if content is None:
        (folder / "resourceconfig.json").mkdir()
    else:
        (folder / "resourceconfig.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(SageMakerJobError, match=r"resourceconfig\.json.*HINT"):
        read({}, tmp_path)


@pytest.mark.parametrize(
    "env",
    [
        {SPAWNED_BY_LIGHTNING: "1", "LOCAL_RANK": "1"},
        {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"},
        {"LOCAL_RANK": "0", "NODE_RANK": "1", "MASTER_ADDR": "head"},
    ],
)
def test_processes_that_lightning_started_are_no_stray(env):
    assert read(env).launcher is Launcher.NONE


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ({"LOCAL_RANK": "0", "RANK": "0"}, {"LOCAL_RANK": 0, "RANK": 0}),
        ({"LOCAL_RANK": "1", "RANK": "1", "WORLD_SIZE": "2"}, {"LOCAL_RANK": 1, "RANK": 1, "WORLD_SIZE": 2}),
        (
            {"LOCAL_RANK": "0", "NODE_RANK": "1", "MASTER_PORT": "1"},
            {"LOCAL_RANK": 0, "NODE_RANK": 1, "MASTER_PORT": 1},
        ),
    ],
)
def test_what_was_set_by_hand_is_kept_and_said(env, found):
    job = read(env)
    assert (job.launcher, job.world_size, job.by_hand) == (Launcher.NONE, None, found)
    assert all(f"{name}={value}" in job.notes[-1] for name, value in found.items())


def test_defaults_of_a_launcher_that_says_less():
    job = read(TORCHRUN | {"MASTER_PORT": ""})
    assert (job.main_address, job.main_port) == ("algo-1", 12910)
    one_host = {"WORLD_SIZE": "2", "RANK": "1", "GROUP_RANK": "", "GROUP_WORLD_SIZE": ""}
    job = read(TORCHRUN | one_host | {"MASTER_ADDR": ""})
    assert (job.main_address, job.main_port, job.num_nodes) == ("127.0.0.1", 7777, 1)
    assert "MASTER_ADDR is not set; using 127.0.0.1" in job.notes[0]


def test_an_address_that_only_mpirun_knows_is_missed_where_it_is_needed():
    job = read(MPIRUN)
    assert (job.main_address, job.num_nodes, job.node_rank) == ("", 2, 1)
    with pytest.raises(SageMakerJobError, match="MASTER_ADDR is not set.*HINT: run mpirun with"):
        job.known_address()
    assert read(MPIRUN | {"MASTER_ADDR": "head"}).known_address() == "head"


def test_one_process_by_hand_on_one_of_two_hosts():
    job = read(
        CONTAINER | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "algo-2", "MASTER_PORT": "1"}
    )
    assert (job.world_size, job.local_world_size, job.hosts) == (1, 1, ("algo-2",))


def test_ranks_of_an_unknown_launcher():
    env = CONTAINER | {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "algo-1", "MASTER_PORT": "1"}
    job = read(env)
    assert (job.launcher, job.local_world_size, job.node_rank) == (Launcher.TORCHRUN, 2, 1)
    assert "not by torchrun or mpirun" in job.notes[0]


NAMES = sorted(
    {
        "SAGEMAKER_BASE_DIR",
        "SM_RESOURCE_CONFIG",
        "SM_INSTANCE_GROUPS_DICT",
        "SM_DISTRIBUTION_INSTANCE_GROUPS",
        "NODE_RANK",
    }
    | {"SM_FRAMEWORK_PARAMS", "SM_HPS", "SM_HP_MP_PARAMETERS", "SM_DISTRIBUTED_CONFIG", "SM_CHANNELS", "SM_MODEL_DIR"}
    | {
        "CURRENT_HOST",
        "PMIX_HOSTNAME",
        "SM_MASTER_ADDR",
        "SM_MASTER_PORT",
        "SMDATAPARALLEL_LOCAL_RANK",
        "PMIX_NAMESPACE",
    }
    | {
        "SMDATAPARALLEL_SERVER_ADDR",
        "SMDATAPARALLEL_SERVER_PORT",
        "LIGHTNING_SAGEMAKER_SIMULATED",
        SPAWNED_BY_LIGHTNING,
    }
    | set(CONTAINER)
    | set(TORCHRUN)
    | set(MPIRUN)
)
HOSTS = st.sampled_from(["algo-1", "algo-2", "algo-3"])
GROUP = st.fixed_dictionaries(
    {},
    optional={
        "hosts": st.lists(HOSTS),
        "instance_group_name": st.sampled_from(["g1", "g2"]),
        "instance_type": st.none(),
    },
)
VALUES = st.one_of(
    st.integers(-2, 6).map(str),
    HOSTS,
    st.lists(HOSTS).map(json.dumps),
    st.dictionaries(HOSTS | st.sampled_from(["hosts", "current_host", "smp", "mp_parameters"]), HOSTS).map(json.dumps),
    st.fixed_dictionaries({"hosts": st.lists(HOSTS), "instance_groups": st.lists(GROUP)}).map(json.dumps),
    st.dictionaries(st.sampled_from(["g1", "g2"]), GROUP).map(json.dumps),
    st.text(max_size=12),
    st.text(string.digits, min_size=4300, max_size=4400),
    st.just("[" * 100_000),
)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES))
@example(TORCHRUN | CONTAINER)
@example({"SAGEMAKER_BASE_DIR": "\0", "TRAINING_JOB_NAME": "x"})
def test_any_environment_is_read_or_refused_by_its_own_error(env):
    """Never another exception; and what is read is consistent in itself."""
    try:
        job = SageMakerJob.from_environment(env, env.get("SAGEMAKER_BASE_DIR", NOWHERE))
    except SageMakerJobError as error:
        message = str(error)
    else:
        return assert_consistent(job)
    assert "HINT: " in message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 6) | st.floats() | st.text(max_size=6) | HOSTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["hosts", "current_host", "instance_groups", "mp_parameters", "x"]), inner)
    ),
    max_leaves=8,
)
FILES = ("resourceconfig", "hyperparameters", "inputdataconfig")


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.sampled_from(FILES), st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
)
def test_any_files_are_read_or_refused_by_their_own_error(tmp_path_factory, files):
    config = tmp_path_factory.mktemp("fuzz") / "input" / "config"
    config.mkdir(parents=True)
    for name, content in files.items():
        (config / f"{name}.json").write_bytes(content)
    try:
        job = SageMakerJob.from_environment({}, config.parent.parent)
    except SageMakerJobError as error:
        message = str(error)
    else:
        return assert_consistent(job)
    assert "HINT: " in message


def assert_consistent(job):
    assert job.hosts[job.node_rank] == job.current_host
    assert job.num_nodes == len(job.hosts) == len(set(job.hosts))
    if job.launcher is Launcher.NONE:
        assert (job.global_rank, job.local_rank, job.world_size, job.local_world_size) == (None,) * 4
    else:
        assert 0 <= job.global_rank < job.world_size == job.num_nodes * job.local_world_size
        assert 0 <= job.local_rank < job.local_world_size
