# SPDX-License-Identifier: Apache-2.0
"""Scripts in the style of AWS's samples, one for each generation of its libraries, rehearsed by the simulated cluster.

They know nothing of this package: what they import is found as in AWS's images, and what SMDDP would refuse is refused.
"""

import io
import sys
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from lightning_sagemaker.launch import run_local_cluster
from tests.conftest import Runs, read_ranks
from tests.distributed.aws_samples import common
from tests.skips import needs_shards

FOLDER = Path(__file__).with_name("aws_samples")
MPIRUN = ["smddp_1", "smddp_2", "lightning_2:ddp", "lightning_2:fsdp"]
TORCHRUN = ["smddp_2", "lightning_2:ddp", "lightning_2:fsdp", "smp_2"]
SIZES = [2, pytest.param(4, marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One launch runs all scripts of a launcher; ranks are forked, so that each script costs little."""

    def launch(key: tuple[str, int]) -> Path:
        distribution, processes = key
        folder, output = tmp_path_factory.mktemp("samples"), io.StringIO()
        scripts = MPIRUN if distribution == "smddp" else TORCHRUN
        result = run_local_cluster(
            ["python", str(FOLDER / "every.py"), str(folder / "out"), *scripts],
            hosts=2,
            processes_per_host=processes // 2,
            distribution=distribution,
            root=folder / "root",
            output=output,
            timeout=240,
            preload=sys.platform == "linux" or None,
            environment={"OMP_NUM_THREADS": "1"},
        )
        assert result.returncode == 0, output.getvalue()[-6000:]
        return folder / "out"

    return Runs(launch)


@pytest.fixture(scope="module")
def one_process() -> dict[str, object]:
    model = common.net()
    batches = DataLoader(common.dataset(), batch_size=common.GLOBAL_BATCH)
    return {"loss": common.train(model, batches).item(), "weights": common.weights(model)}


def ranks_of(runs, distribution: str, processes: int, script: str) -> list[dict]:
    ranks = read_ranks(runs[distribution, processes] / script.replace(":", ""))
    assert len(ranks) == processes
    return ranks


@pytest.mark.parametrize("processes", SIZES)
@pytest.mark.parametrize(
    ("distribution", "script"),
    [
        *(("smddp", name) for name in MPIRUN[:3]),
        *(("torch_distributed", name) for name in TORCHRUN[:2]),
        *(pytest.param("torch_distributed", name, marks=needs_shards) for name in TORCHRUN[2:]),
    ],
)
def test_trains_as_one_process_does(runs, one_process, distribution, script, processes):
    for number, rank in enumerate(ranks_of(runs, distribution, processes, script)):
        assert rank.get("error") is None
        assert rank["weights"] == pytest.approx(one_process["weights"], abs=1e-6)
        assert rank["world_size"] == processes
        assert rank.get("backend", "smddp") == "smddp"
        assert rank.get("loss", one_process["loss"]) == pytest.approx(one_process["loss"], abs=1e-6)
        assert rank.get("local_rank", number % (processes // 2)) == number % (processes // 2)
        assert rank.get("environment", "LightningEnvironment") == "LightningEnvironment"


@needs_shards
@pytest.mark.parametrize("processes", SIZES)
def test_fsdp_under_mpirun_is_refused_with_smddps_words(runs, processes):
    """AWS's guide starts it by ``torch_distributed``. On a GPU it would be ``_allgather_base``: see test_shim.py."""
    ranks = ranks_of(runs, "smddp", processes, "lightning_2:fsdp")
    assert {rank["error"] for rank in ranks} == {"RuntimeError: SMDDP does not support: _reduce_scatter_base"}
