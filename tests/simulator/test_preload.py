# SPDX-License-Identifier: Apache-2.0
"""Ranks that are forked see what ranks see that are started by themselves."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_sagemaker.launch import LocalClusterError, run_local_cluster
from lightning_sagemaker.simulator.contract import CONTRACT_NAMES, CONTRACT_PREFIXES
from lightning_sagemaker.simulator.preload import handover

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely after such imports")

VIEW = Path(__file__).with_name("view.py")
FAIL = """
import os, pathlib, signal, sys, time
here = pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"])
def stop(number, frame):
    (here / f"signal-{os.environ['RANK']}").write_text(signal.Signals(number).name)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("started", flush=True)
(here / f"started-{os.environ['RANK']}").touch()
while len(list(here.parents[2].glob("algo-*/output/data/started-*"))) < 4:
    time.sleep(0.05)
if os.environ["RANK"] == "3":
    def fail():
        raise RuntimeError("boom")
    try:
        raise ValueError("first")
    except ValueError as error:
        fail()
time.sleep(60)
"""


def rehearse(program, root, preload, **arguments):
    output = io.StringIO()
    result = run_local_cluster(
        ["python", *program],
        hosts=2,
        processes_per_host=2,
        root=root,
        preload=preload,
        output=output,
        timeout=240,
        environment={"MINE": "é \udcff", "PYTHONHASHSEED": "0"},
        **arguments,
    )
    text = output.getvalue()
    assert ("are forked from one that has imported" in text.splitlines()[0]) is bool(preload)
    return result, text


OF_A_RUN = re.compile(
    r"local-\d{8}-\d{6}-\d+|torchelastic_\w{8}/\w+_\w{8}|"
    r"lightning-sagemaker-\w{8}|(?:pid|ompi)\.\d+|_\d{4,}$|tcp[46]?://[^;]*|^\d+-\d{15,}$"
)
NUMBERED = {
    "MASTER_PORT",
    "PMIX_ID",
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "OMPI_MCA_orte_precondition_transports",
}
"""What differs between two runs in the same mode: names, ports, the folder, Open MPI's own numbers."""


def general(value: object, root: Path, name: str = "") -> object:
    """A view without what names its run."""
    if isinstance(value, dict):
        return {key: general(item, root, key) for key, item in value.items()}
    if isinstance(value, list):
        return [general(item, root) for item in value]
    if not isinstance(value, str):
        return value
    if name in NUMBERED or name.endswith("_uri") or name.startswith("PMIX_SERVER_URI"):
        return "SO"
    return OF_A_RUN.sub("SO", value.replace(str(root), "ROOT"))


OF_ACCELERATE = ("SecurityWarning", "InsecurePlatformWarning", "torch.optim.lr_scheduler")
"""Filters of warnings that a forked rank has sooner, where transformers' models bring accelerate, as with peft."""


def differences(first: object, second: object, place: str = "") -> list[str]:
    """Leaves that differ."""
    if isinstance(first, dict) and isinstance(second, dict):
        names = sorted(first.keys() | second.keys())
        return [d for n in names for d in differences(first.get(n), second.get(n), f"{place}/{n}")]
    return [] if first == second else [f"{place}: {first!r} != {second!r}"]


@pytest.mark.parametrize("distribution", ["smddp", pytest.param("torch_distributed", marks=pytest.mark.slow)])
def test_each_ranks_view(tmp_path, distribution):
    seen, own = {}, {}
    for preload in (False, True):
        root = tmp_path / str(preload)
        command = [str(VIEW), "--epochs", "2", "--text", "a b", ""]
        result, output = rehearse(command, root, preload, distribution=distribution)
        assert (result.returncode, result.failure) == (0, None), output
        for rank in range(4):
            here = root / f"algo-{rank // 2 + 1}" / "output" / "data"
            assert (here / f"unflushed-{rank}").read_text() == "at the end"
            assert (here / f"atexit-{rank}").read_text() == "thread True"
            found = json.loads((here / f"view-{rank}.json").read_text())
            seen[preload, rank], own[preload, rank] = general(found["view"], root), found["own"]
            filters = seen[preload, rank]["after imports"]["warnings"]
            filters[:] = [one for one in filters if not any(word in one for word in OF_ACCELERATE)]
    for rank in range(4):
        assert differences(seen[False, rank], seen[True, rank]) == []
        loaded = seen[True, rank]["after training"]["loaded"]
        assert "lightning" in loaded
        assert seen[True, rank]["after training"]["version 2"] == "lightning_sagemaker.torch_sagemaker"
        assert "mpi4py.MPI" not in loaded  # MPI spins while it waits for all ranks
    for preload in (False, True):
        for name in ("torch", "random", "numpy"):
            assert len({own[preload, rank][name] for rank in range(4)}) == 4, f"{name}: the same numbers on each rank"
    sessions = {
        preload: [
            own[preload, rank]["session"] == own[preload, other]["session"] for rank in range(4) for other in range(4)
        ]
        for preload in (False, True)
    }
    assert sessions[True] == sessions[False]  # torchrun's ranks have one each
    assert distribution != "smddp" or all(sessions[True])  # one mpirun


@pytest.mark.slow
def test_failures_and_signals(tmp_path):
    (tmp_path / "fail.py").write_text(FAIL)
    told = {}
    for preload in (False, True):
        root = tmp_path / str(preload)
        result, output = rehearse([str(tmp_path / "fail.py")], root, preload, distribution="torch_distributed")
        told[preload] = (
            result.returncode,
            result.failure,
            (root / "algo-2" / "output" / "failure").read_text(),
            sorted((str(p.relative_to(root)), p.read_text()) for p in root.glob("*/output/data/signal-*")),
            sorted(line for line in output.splitlines() if "started" in line),
        )
    assert told[False] == told[True]
    assert told[True][0] == 1
    assert [text for _, text in told[True][3]] == ["SIGTERM"] * 3


LATE = """
import os, sys
os.environ["TORCH_LOGS_FORMAT"] = "%(message)s"
os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import pytorch_lightning as pl
import lightning_sagemaker
from lightning_sagemaker import _lightning
from huggingface_hub import constants
trainer = pl.Trainer(strategy="sagemaker", accelerator="cpu", logger=False, enable_checkpointing=False)
print("built on", _lightning.PACKAGE, "lightning.pytorch" in sys.modules, "offline", constants.HF_HUB_OFFLINE, flush=True)
raise KeyboardInterrupt
"""


def test_variables_that_are_set_before_an_import_and_the_other_lightning(tmp_path):
    pytest.importorskip("huggingface_hub")
    (tmp_path / "late.py").write_text(LATE)
    output = io.StringIO()
    command = ["python", str(tmp_path / "late.py")]
    result = run_local_cluster(
        command,
        hosts=1,
        distribution="none",
        root=tmp_path / "root",
        preload=True,
        output=output,
        timeout=120,
        environment={"OMP_NUM_THREADS": "1"},
    )
    assert (
        "TORCH_LOGS_FORMAT: set after torch was imported for all processes. HINT: give --no-preload."
        in output.getvalue()
    )
    assert "built on pytorch_lightning False offline True" in output.getvalue()
    assert result.returncode == 128 + 2, output.getvalue()  # SIGINT, as of a Python that nobody has caught it in
    assert result.failure.last_lines[1].startswith(f'  File "{command[1]}", line 12')


READS = """
import json, sys
from lightning_sagemaker.simulator.preload import handover
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "_AfterImport"]  # as the server does
hidden = frozenset(package for group in handover.groups() for package in group.packages)
print(json.dumps([name for group in handover.groups() if handover.load(group, hidden) for name in group.read]))
"""


def test_imports_read_no_other_variable_of_a_rank():
    """What differs between ranks is seen to by name; a release that reads one more needs that too."""
    done = subprocess.run([sys.executable, "-c", READS], capture_output=True, text=True, timeout=120, check=True)
    read = json.loads(done.stdout.splitlines()[-1])
    of_a_job = {name for name in read if name in CONTRACT_NAMES or name.startswith(CONTRACT_PREFIXES)}
    assert of_a_job <= handover.RANK_NAMES | {"SM_HP_MP_PARAMETERS"}  # the distribution smp leaves transformers out
    assert "RANK" in of_a_job


def test_an_import_that_starts_a_program_reads_the_path():
    """It is looked up by bytes too, which ``os.environ`` refuses."""
    read: dict[str, str | None] = {}
    with handover._reads_recorded(read):
        os.get_exec_path()
        os.environb.get(b"HOME")
        with pytest.raises(TypeError):
            os.environ[b"USER"]  # type: ignore[index]
    assert read == {name: os.environ.get(name) for name in ("PATH", "HOME", "USER")}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["true"], "'true' is not run by"),
        (["python", "-u", "train.py"], "'train.py' is not run by"),
        (["python", "-c", "1"], "'-c' is neither a module nor a file that ends in .py"),
    ],
)
def test_what_cannot_be_forked(tmp_path, monkeypatch, command, words):
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LocalClusterError, match=words):
        run_local_cluster(command, root=tmp_path / "root", preload=True, distribution="none")
    monkeypatch.setattr("lightning_sagemaker.simulator.preload.plan.available_cores", lambda: 1)
    output = io.StringIO()
    run_local_cluster(command, root=tmp_path / "root", distribution="none", output=output, timeout=60)
    assert f"; each process imports by itself, because {words}" in output.getvalue()


@pytest.mark.slow
def test_a_real_job(tmp_path):
    """Four hosts of eight: the table's other numbers are those of ``make bench-rehearsal``."""
    output = io.StringIO()
    result = run_local_cluster(
        ["python", str(VIEW)], hosts=4, processes_per_host=8, root=tmp_path, output=output, timeout=500
    )
    assert result.returncode == 0, output.getvalue()
    seen = [json.loads(path.read_text())["view"] for path in tmp_path.glob("algo-*/output/data/view-*.json")]
    assert sorted(view["after training"]["ranks"] for view in seen) == [[n, n % 8, n // 8, 32] for n in range(32)]
    assert len({tuple(view["after training"]["weights"]) for view in seen}) == 1
