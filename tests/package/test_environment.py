# SPDX-License-Identifier: Apache-2.0
import os
from dataclasses import replace

import pytest

from lightning_sagemaker._lightning import rank_zero_only
from lightning_sagemaker.environment import SageMakerEnvironment
from lightning_sagemaker.job import SPAWNED_BY_LIGHTNING, Launcher, SageMakerJob, SageMakerJobError
from lightning_sagemaker.job.process import end_start
from lightning_sagemaker.rank import announce_rank

TWO_HOSTS = {
    "in_container": True,
    "hosts": ("algo-1", "algo-2"),
    "current_host": "algo-2",
    "num_nodes": 2,
    "node_rank": 1,
}
LAUNCHED = SageMakerJob(
    **TWO_HOSTS,
    launcher=Launcher.MPI,
    global_rank=3,
    local_rank=1,
    world_size=4,
    local_world_size=2,
    main_address="algo-1",
)
PLAIN = SageMakerJob(**TWO_HOSTS, main_address="algo-1", main_port=7777)


@pytest.fixture(autouse=True)
def restored_rank():
    before = rank_zero_only.rank
    yield
    rank_zero_only.rank = before


def test_under_a_launcher():
    environment = SageMakerEnvironment(LAUNCHED)
    assert environment.creates_processes_externally
    assert (environment.global_rank(), environment.world_size()) == (3, 4)
    assert (environment.local_rank(), environment.node_rank()) == (1, 1)
    environment.set_world_size(9)
    environment.set_global_rank(9)  # what Lightning would compute from its own numbers
    assert (environment.global_rank(), environment.world_size(), rank_zero_only.rank) == (3, 4, 3)
    assert (environment.main_address, environment.main_port) == ("algo-1", 7777)


def test_without_a_launcher(monkeypatch):
    environment = SageMakerEnvironment(PLAIN)
    assert not environment.creates_processes_externally
    environment.set_world_size(4)
    environment.set_global_rank(2)
    assert (environment.global_rank(), environment.world_size(), rank_zero_only.rank) == (2, 4, 2)
    assert (environment.local_rank(), environment.node_rank(), environment.main_port) == (0, 1, 7777)
    monkeypatch.setenv("LOCAL_RANK", "1")  # in a process that Lightning started
    assert SageMakerEnvironment(PLAIN).creates_processes_externally
    assert SageMakerEnvironment(PLAIN).local_rank() == 1


def test_an_address_that_neither_variables_nor_mpi_know(monkeypatch):
    """What MPI knows is in tests/distributed/test_mpi.py."""
    monkeypatch.setattr("lightning_sagemaker.environment.MPIEnvironment.detect", lambda: False)
    environment = SageMakerEnvironment(replace(LAUNCHED, main_address=""))
    for name in ("main_address", "main_port"):
        with pytest.raises(SageMakerJobError, match="MASTER_ADDR is not set"):
            getattr(environment, name)


def test_one_host_alone_takes_a_free_port(monkeypatch):
    alone = SageMakerJob()
    environment = SageMakerEnvironment(alone)
    assert environment.main_port == environment.main_port != alone.main_port
    monkeypatch.setenv("MASTER_PORT", "1234")
    assert SageMakerEnvironment(alone).main_port == alone.main_port


@pytest.mark.parametrize(
    ("job", "devices", "nodes", "words"),
    [
        (LAUNCHED, 2, 3, "num_nodes=3 was set, but this job has 2 host(s): algo-1, algo-2. HINT: leave num_nodes out"),
        (
            LAUNCHED,
            4,
            2,
            "devices=4 was set, but the launcher started 2 process(es) on this host. HINT: leave devices out",
        ),
        (PLAIN, 1, 1, "num_nodes=1 was set, but this job has 2"),
    ],
)
def test_settings_that_contradict_the_job(job, devices, nodes, words):
    with pytest.raises(SageMakerJobError) as caught:
        SageMakerEnvironment(job).validate_settings(devices, nodes)
    assert words in str(caught.value)


def test_processes_that_lightning_starts_are_marked():
    SageMakerEnvironment(LAUNCHED).validate_settings(2, 2)
    assert SPAWNED_BY_LIGHTNING not in os.environ
    SageMakerEnvironment(PLAIN).validate_settings(8, 2)
    assert os.environ[SPAWNED_BY_LIGHTNING] == "1"
    end_start()
    assert SPAWNED_BY_LIGHTNING not in os.environ


def test_teardown_forgets_what_lightning_left(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    SageMakerEnvironment(LAUNCHED).teardown()
    assert os.environ["WORLD_SIZE"] == "4"
    SageMakerEnvironment(PLAIN).teardown()
    assert "WORLD_SIZE" not in os.environ


def test_detect(monkeypatch):
    assert not SageMakerEnvironment.detect()
    monkeypatch.setenv("TRAINING_JOB_NAME", "job-1")
    assert SageMakerEnvironment.detect()
    monkeypatch.setenv("SM_HOSTS", "[")
    assert SageMakerEnvironment.detect()


def test_the_rank_is_announced_before_any_trainer(monkeypatch):
    for name, value in {"RANK": "2", "SIZE": "4", "LOCAL_RANK": "2", "LOCAL_SIZE": "4"}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    announce_rank()
    assert rank_zero_only.rank == 2


def test_of_hosts_without_a_launcher_only_the_first_speaks(monkeypatch):
    rank_zero_only.rank = 0
    monkeypatch.setenv("TRAINING_JOB_NAME", "job-1")
    monkeypatch.setenv("SM_HOSTS", '["algo-1", "algo-2"]')
    monkeypatch.setenv("CURRENT_HOST", "algo-2")
    announce_rank()
    assert rank_zero_only.rank == 1


def test_a_bad_environment_does_not_fail_the_import(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    announce_rank()
