# SPDX-License-Identifier: Apache-2.0
"""What all tests share: a clean environment, and a way to launch a group of processes once."""

import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from lightning_utilities.core.rank_zero import rank_zero_only

from tests.forked import let_workers_end, run_forked

pytest_plugins = ["tests.alone", "tests.aws_clients", "tests.extended", "tests.skips"]

ROOT = Path(__file__).parent.parent

PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))
"""Factor of the time limits of what tests launch: more than 1 on a machine that is busy with other work."""

_CONTRACT_PREFIXES = (
    "SM_",
    "OMPI_",
    "PMIX_",
    "TORCHELASTIC_",
    "SAGEMAKER_",
    "SMDATAPARALLEL_",
    "PL_",
    "LIGHTNING_SAGEMAKER_",
)
_CONTRACT_NAMES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "CURRENT_HOST"}
_CONTRACT_NAMES |= {"MASTER_ADDR", "MASTER_PORT", "TRAINING_JOB_NAME", "TRAINING_JOB_ARN"}


# The Trainer initializes MPI in a process that no launcher has started, and Open MPI looks for fabrics for a second.
os.environ.setdefault("OMPI_MCA_btl", "^ofi")

if sys.version_info >= (3, 14) and sys.platform == "linux":
    # Loader workers come from a fork server there; it imports the main module, and that of pytest does not import torch.
    multiprocessing.set_forkserver_preload(["torch", "lightning.pytorch"])


def is_contract_variable(name: str) -> bool:
    """Whether a variable could make a test machine look like a job or a launched process."""
    kept = ("LIGHTNING_SAGEMAKER_TEST_", "OMPI_MCA_btl")
    return name in _CONTRACT_NAMES or (name.startswith(_CONTRACT_PREFIXES) and not name.startswith(kept))


def new_process() -> None:
    """What follows in a test stands for another process: none of its fits has completed."""
    if (module := sys.modules.get("lightning_sagemaker.callbacks.completed_fits")) is not None:
        module._COMPLETED.clear()


@pytest.fixture(autouse=True)
def clean_environment():
    """Each test begins without the variables of a job, on rank zero, and leaves the environment as it was."""
    before = dict(os.environ)
    for name in list(os.environ):
        if is_contract_variable(name):
            del os.environ[name]
    new_process()
    rank_zero_only.rank = 0  # a strategy of another test may have said that it has another
    yield
    os.environ.clear()
    os.environ.update(before)


def pytest_collection_finish() -> None:
    """What has been imported stays: collections of garbage need not look through it, which takes half a second."""
    gc.collect()
    gc.freeze()
    let_workers_end()


def run_bounded(command: list[str], *, timeout: float = 240, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in a process group of its own, which is killed whole if it outlasts ``timeout`` seconds."""
    clean = {k: v for k, v in os.environ.items() if not is_contract_variable(k)}
    process = subprocess.Popen(
        [str(part) for part in command],
        env={**clean, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout * PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"{command} did not end in {timeout} s:\n{output[-4000:]}") from None
    return subprocess.CompletedProcess(command, process.returncode, output, "")


def torchrun(script: Path, *arguments: object, processes: int, **environment: str) -> None:
    """Run ``script`` by torchrun with so many processes; it must succeed."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    result = run_bounded([*launcher, str(script), *map(str, arguments)], **environment)
    assert result.returncode == 0, result.stdout[-6000:]


def fork_ranks(
    script: str | Path, *arguments: object, processes: int, timeout: float = 240, **environment: str
) -> None:
    """As :func:`torchrun`, but sooner; 0 processes are one on its own. See tests/forked.py."""
    command = [str(part) for part in (script, *arguments)]
    clean = {k: v for k, v in os.environ.items() if not is_contract_variable(k)}
    with tempfile.NamedTemporaryFile("r") as output:
        code = run_forked(
            command,
            processes,
            {**clean, "OMP_NUM_THREADS": "1", **environment},
            Path(output.name),
            timeout * PATIENCE,
        )
        text = output.read()
        if code:
            _skip_if_it_needs_a_newer_torch(text)
        assert code == 0, f"{command} ended with {code}:\n{text[-6000:]}"


def _skip_if_it_needs_a_newer_torch(output: str) -> None:
    """The product's own sentence decides, which test_shim.py holds to the version of torch."""
    if "Sharded parameters on a CPU need torch 2.6, and this is torch 2.5." in output:
        pytest.skip("sharded parameters on a CPU need torch 2.6")


class Runs(dict):
    """What was launched, by name; launched when it is first asked for, so that tests that are left out cost nothing.

    Args:
        make: Called with a name.

    """

    def __init__(self, make) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name):
        self[name] = self._make(name)
        return self[name]


def read_ranks(folder: Path) -> list[dict]:
    """The results that the ranks of one launch wrote, by rank."""
    return [
        json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(len(list(folder.glob("rank-*.json"))))
    ]


@pytest.fixture(autouse=True, scope="module")
def same_environment():
    """What a module's code sets, as Lightning's ``seed_everything`` does, is not seen by the processes of the next."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def group_of_one():
    """The default group, over gloo, of this process alone."""
    import torch.distributed as dist

    from lightning_sagemaker.collectives import clean_exit

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    clean_exit.let_threads_finish()  # torch 2.5 waits for them with the GIL held
    dist.destroy_process_group()
