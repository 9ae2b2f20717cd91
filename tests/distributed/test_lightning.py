# SPDX-License-Identifier: Apache-2.0
"""``"smddp"`` against ``"ddp"``, and many processes against one, over Lightning's whole surface.

Each launch runs every scenario of worker.py once; the tests compare what the ranks wrote.
"""

import functools
import shutil
from pathlib import Path

import pytest
import torch

from tests.conftest import fork_ranks, read_ranks
from tests.skips import only_cpu

WORKER = Path(__file__).with_name("worker.py")
SAME_AS_DDP = [
    "fit",
    "accumulate_and_clip",
    "bf16_mixed",
    "16_mixed",
    "unused_parameters",
    "evaluate",
    "keep_a_validation",
    "torchmetrics",
    "collectives",
    "average_directly",
    "early_stopping",
    "comm_hooks",
    "sync_batchnorm",
    "asynchronous_checkpoint",
    "monitored_barrier",
    "compiled",
]


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """``launch(strategy, processes, **environment)``: the ranks' results; each combination is run once."""

    @functools.cache
    def run(strategy: str, processes: int, **environment: str) -> list[dict]:
        folder = tmp_path_factory.mktemp(f"{strategy}-{processes}")
        limit = 900 if "COMPILERS" in environment else 240
        fork_ranks(WORKER, strategy, folder, processes=processes, timeout=limit, **environment)
        return read_ranks(folder)

    return run


@pytest.fixture(scope="module")
def ddp(launch):
    return launch("ddp", 2)


@pytest.fixture(scope="module")
def smddp(launch, ddp):
    return launch("smddp", 2, OTHER_CHECKPOINT=ddp[0]["checkpoint"]["path"])


ONLY_CPU = {"monitored_barrier", "compiled"}
"""nccl alone has the one not; the other makes a model on the CPU."""


@pytest.mark.parametrize(
    "scenario", [pytest.param(name, marks=only_cpu if name in ONLY_CPU else ()) for name in SAME_AS_DDP]
)
def test_smddp_equals_ddp(ddp, smddp, scenario):
    """Losses, weights, metrics, predictions and errors are the same to the last digit on both ranks."""
    for mine, reference in zip(smddp, ddp, strict=True):
        if scenario == "average_directly" and "ReduceOp.AVG with Gloo" in str(reference[scenario]):
            assert mine[scenario] == [1.5]  # SMDDP takes it, and torch 2.5's gloo does not
        else:
            assert mine[scenario] == reference[scenario]


@only_cpu
def test_only_the_expected_scenario_fails(smddp):
    """Equality is not that of two failures, but for what torch refuses: SyncBatchNorm on a CPU, and compiling."""
    failed = {name for name, result in smddp[0].items() if isinstance(result, dict) and "error" in result}
    can_compile = torch._dynamo.is_dynamo_supported()  # torch 2.5 cannot with Python 3.13
    assert failed == {"sync_batchnorm"} | (set() if can_compile else {"compiled"})
    assert "SyncBatchNorm layers only work with GPU modules" in smddp[0]["sync_batchnorm"]["error"]


@only_cpu
def test_the_default_group_is_the_composite(ddp, smddp):
    assert [rank["backend"] for rank in smddp] == ["smddp_composite"] * 2
    assert ddp[0]["backend"] == "gloo"


@pytest.mark.slow  # the compiler's part takes most of it
@pytest.mark.timeout(3600)
@pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler (cc) not found")
@pytest.mark.parametrize("compiler", ["eager", "aot_eager", "inductor"])
def test_compiled_by_others_equals_ddp(launch, compiler):
    """Within and around DDP's wrapper and Fabric's, and a compiled module in a Trainer."""
    only = {"SCENARIOS": "fit,compiled", "COMPILERS": compiler}
    ddp = launch("ddp", 2, **only)[0]["compiled"]
    assert "error" not in ddp
    assert len(ddp) == 2
    for strategy in ("smddp", "sagemaker"):
        assert launch(strategy, 2, **only)[0]["compiled"] == ddp, strategy


def test_checkpoints_are_interchangeable(ddp, smddp, launch):
    """Trained one epoch under one strategy and one under the other: the weights of two epochs."""
    uninterrupted = ddp[0]["fit"]["weights"]
    assert smddp[0]["checkpoint"]["weights"] == uninterrupted
    assert smddp[0]["resume_from_the_other_strategy"]["weights"] == uninterrupted
    environment = {"OTHER_CHECKPOINT": smddp[0]["checkpoint"]["path"], "SCENARIOS": "resume_from_the_other_strategy"}
    back = launch("ddp", 2, **environment)
    assert back[0]["resume_from_the_other_strategy"]["weights"] == uninterrupted


def test_cli_by_string_and_by_class_path(ddp, smddp):
    assert smddp[0]["cli"]["string"]["strategy"] == smddp[0]["cli"]["class_path"]["strategy"] == "SMDDPStrategy"
    assert smddp[0]["cli"]["string"]["weights"] == ddp[0]["cli"]["string"]["weights"]
    assert smddp[0]["cli"]["class_path"]["weights"] == ddp[0]["cli"]["string"]["weights"]


@pytest.mark.parametrize("processes", [1, 4])
def test_any_number_of_processes_equals_one(launch, smddp, processes):
    """The same global batch gives the same weights and metrics, up to the order of float32 sums."""
    chosen = "fit,accumulate_and_clip,evaluate"
    ranks = launch("smddp", processes, SCENARIOS=chosen)
    for scenario in ("fit", "accumulate_and_clip"):
        assert ranks[0][scenario]["weights"] == pytest.approx(smddp[0][scenario]["weights"], abs=2e-6)
        # "max" is over the ranks' batches, which differ with their number.
        metrics = {k: v for k, v in ranks[0][scenario]["metrics"].items() if k != "train_max"}
        assert metrics == pytest.approx({k: smddp[0][scenario]["metrics"][k] for k in metrics}, abs=2e-6)
    for stage in ("validate", "test"):
        assert ranks[0]["evaluate"][stage] == pytest.approx(smddp[0]["evaluate"][stage], abs=2e-6)


@only_cpu
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_ranks_and_shards_without_any_argument(launch, smddp, processes):
    """``Trainer(strategy="smddp")`` knows the world and gives every sample to one rank per epoch."""
    ranks = smddp if processes == 2 else launch("smddp", processes, SCENARIOS="fit,accumulate_and_clip,evaluate")
    assert [r["fit"]["rank"] for r in ranks] == list(range(processes))
    for rank in ranks:
        facts = {name: rank["fit"][name] for name in ("world_size", "num_nodes", "num_devices", "node_rank")}
        assert facts == {"world_size": processes, "num_nodes": 1, "num_devices": processes, "node_rank": 0}
    epochs = 2
    seen = sorted(index for rank in ranks for index in rank["fit"]["seen"])
    assert seen == sorted(list(range(48)) * epochs)


def test_predictions_cover_the_data_once(smddp):
    merged = smddp[0]["evaluate"]["predict"] | smddp[1]["evaluate"]["predict"]
    assert len(merged) == 48
    assert not set(smddp[0]["evaluate"]["predict"]) & set(smddp[1]["evaluate"]["predict"])


def test_without_the_composite_the_real_refusals_come_back(launch):
    """The strict shim alone fails the way the real library does in users' reports."""
    bare = {"LIGHTNING_SAGEMAKER_COMPOSITE": "0", "STARTED_BY": "mpirun"}  # under torchrun nothing is refused
    ranks = launch("smddp", 2, **bare, SCENARIOS="evaluate,average_directly,collectives")
    assert ranks[0]["backend"] == "smddp"
    assert "SMDDP does not support: ReduceOp" in ranks[0]["average_directly"]["error"]
    assert "SMDDP does not support: ReduceOp" in ranks[0]["evaluate"]["error"]  # self.log(sync_dist=True) is a mean
    assert "SMDDP does not support" in ranks[0]["collectives"]["error"]
