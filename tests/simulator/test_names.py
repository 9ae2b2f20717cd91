# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts have names of their own, which resolve, as in the containers: scripts find their ranks by them."""

import io
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from lightning_sagemaker.launch import run_local_cluster
from lightning_sagemaker.simulator import cluster, names
from lightning_sagemaker.simulator.cluster import LocalResult

with tempfile.TemporaryDirectory() as folder:
    OBSTACLE = names.make_names(["algo-1"], Path(folder))
namespaces = pytest.mark.skipif(OBSTACLE is not None, reason=f"hosts cannot have names here: {OBSTACLE}")

BY_HAND = """
import json, os, socket, threading, time
import torch, torch.distributed as dist

hosts = json.loads(os.environ["SM_HOSTS"])
rank = hosts.index(os.environ["SM_CURRENT_HOST"])
os.environ |= {"MASTER_ADDR": hosts[0], "RANK": str(rank), "WORLD_SIZE": str(len(hosts))}
os.environ.setdefault("MASTER_PORT", os.environ["FREE_PORT"])
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", int(total), socket.gethostname() == hosts[rank], flush=True)


def thread_of_gloo():  # stands for one that needs Python while the process ends, which would terminate it
    threading.main_thread().join()
    time.sleep(0.005)
    print("then freed its tensors", flush=True)


threading.Thread(target=thread_of_gloo, daemon=True).start()
"""
SAYS = """
import os, socket, time
own, local = socket.gethostname(), os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", os.environ.get("LOCAL_RANK"))
print(own, socket.gethostbyname(own), local, flush=True)
"""
NAMES_THE_FOLDER = """
import json, os
from pathlib import Path

host = json.loads(Path("/opt/ml/input/config/resourceconfig.json").read_text())["current_host"]
Path("/opt/ml/model", f"of-{host}").touch()
is_its_own = os.path.samefile("/opt/ml/model", os.environ["SM_MODEL_DIR"])
print(host, is_its_own, os.listdir("/opt/ml/input/data/train"), flush=True)
"""
MAKES_ROOM = """
import os, sys
from lightning_sagemaker.simulator import host_init

parent, folder = sys.argv[1:]
before = sorted(os.listdir(parent))
host_init._CONTAINERS = f"{parent}/room"
host_init.take_name("algo-1", folder)
assert sorted(os.listdir(parent)) == sorted([*before, "room"]), os.listdir(parent)
assert os.path.samefile(f"{parent}/room", folder)
print(*(open(f"{parent}/{name}").read() for name in ("file", "link", "sub/file")))
"""
STOCK = """
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
import torch.distributed as dist

dist.init_process_group("gloo", init_method="env://")
trainer = Trainer(
    accelerator="cpu", strategy="ddp", devices=2, num_nodes=2, max_steps=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
)
trainer.fit(BoringModel())
print("trained on", trainer.global_rank, "of", trainer.world_size, flush=True)
"""
FAILS = """
import os, sys, time
from mpi4py import MPI

MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.Get_rank() == 1:
    raise ValueError("one rank")
MPI.COMM_WORLD.Barrier()
"""


@pytest.fixture
def run(tmp_path):
    def runs(text: str, **arguments) -> tuple[LocalResult, list[str], str]:
        (tmp_path / "script.py").write_text(textwrap.dedent(text))
        output = io.StringIO()
        command = [sys.executable, str(tmp_path / "script.py")]
        result = run_local_cluster(command, root=tmp_path / "root", output=output, timeout=90, **arguments)
        return result, sorted(line.partition(" | ")[2] for line in output.getvalue().splitlines()), output.getvalue()

    return runs


@namespaces
def test_ranks_that_a_script_sets_by_hand_meet_at_the_first_host(run):
    port = str(cluster.free_port())
    result, lines, output = run(BY_HAND, hosts=2, distribution="none", environment={"FREE_PORT": port})
    assert result.returncode == 0, output
    assert lines[-4:] == ["sum 2 True"] * 2 + ["then freed its tensors"] * 2


@namespaces
@pytest.mark.parametrize("preload", [False, True])
@pytest.mark.parametrize("distribution", ["smddp", "torch_distributed"])
def test_each_rank_has_the_name_of_its_host(run, distribution, preload):
    _, lines, output = run(SAYS, hosts=2, processes_per_host=2, distribution=distribution, preload=preload)
    expected = [f"algo-{host} 127.0.1.{host} {local}" for host in (1, 2) for local in (0, 1)]
    # torchrun of one host may complain at its end that the other's has ended
    assert [line for line in lines if line.startswith("algo-")] == expected, output


@namespaces
@pytest.mark.parametrize("distribution", ["none", "smddp"])
def test_scripts_may_name_the_folder_of_the_containers(run, distribution, tmp_path):
    """``/opt/ml``, as many scripts do; it is each host's own, and this machine has nothing of it."""
    before = sorted(Path("/opt").rglob("ml/*"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").touch()
    result, lines, output = run(
        NAMES_THE_FOLDER, hosts=2, distribution=distribution, channels={"train": tmp_path / "data"}
    )
    assert lines[-2:] == [f"algo-{host} True ['a.csv']" for host in (1, 2)], output
    assert [(result.root / f"algo-{host}" / "model" / f"of-algo-{host}").exists() for host in (1, 2)] == [True, True]
    assert sorted(Path("/opt").rglob("ml/*")) == before


@namespaces
def test_room_for_the_folder_hides_nothing_beside_it(tmp_path):
    parent, folder = tmp_path / "opt", tmp_path / "host"
    (parent / "sub").mkdir(parents=True)
    folder.mkdir()
    for place in (parent / "file", parent / "sub" / "file"):
        place.write_text(place.name)
    (parent / "link").symlink_to("file")
    command = [sys.executable, "-c", MAKES_ROOM, str(parent), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["file"] * 3, done.stderr
    assert not (parent / "room").exists()


@namespaces
def test_lightnings_own_environment_tells_hosts_apart(run):
    """``MPIEnvironment`` takes ranks of one host name for those of one host."""
    result, lines, output = run(STOCK, hosts=2, processes_per_host=2, distribution="smddp")
    assert result.returncode == 0, output
    assert [line for line in lines if "trained" in line] == [f"trained on {rank} of 4" for rank in range(4)]


@pytest.mark.parametrize("preload", [False, True])
def test_a_rank_that_fails_ends_those_that_wait_for_it_in_mpi(run, preload):
    begin = time.monotonic()
    result, _, output = run(FAILS, hosts=1, processes_per_host=2, distribution="mpi", preload=preload)
    assert (result.returncode, result.failure.rank) == (1, 1), output
    assert time.monotonic() - begin < 60


def test_where_the_kernel_does_not_permit_it_one_line_says_so(run, monkeypatch, tmp_path):
    monkeypatch.setattr(names, "_SYSTEM", tmp_path / "nothing")
    result, _, output = run(SAYS, hosts=2, distribution="none")
    assert "the hosts have this machine's name, and algo-1 does not resolve: " in output
    assert "nothing" in output
    assert result.returncode == 0 or "gaierror" in output


@namespaces
def test_this_machine_keeps_its_own_name(run):
    before = subprocess.run(["uname", "-n"], capture_output=True, check=True).stdout
    run(SAYS, hosts=1, distribution="none")
    assert subprocess.run(["uname", "-n"], capture_output=True, check=True).stdout == before
