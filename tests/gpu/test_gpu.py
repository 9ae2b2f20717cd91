# SPDX-License-Identifier: Apache-2.0
"""What one NVIDIA GPU can decide: `make gpu`. Stock Lightning on the same GPU says what is right.

``LIGHTNING_SAGEMAKER_TEST_ACCELERATOR=cpu`` runs the same on a CPU: it shows that the tests themselves work, no more.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.conftest import read_ranks, torchrun
from tests.distributed.test_lightning import ONLY_CPU, SAME_AS_DDP

ACCELERATOR = os.environ.get("LIGHTNING_SAGEMAKER_TEST_ACCELERATOR", "cuda")
DISTRIBUTED = Path(__file__).parents[1] / "distributed"
SURFACE, OWN, SHARDED = (
    DISTRIBUTED / "worker.py",
    Path(__file__).with_name("gpu_worker.py"),
    DISTRIBUTED / "fsdp_worker.py",
)
REFUSED = {"cpu": ("sync_batchnorm",), "cuda": ("keep_a_validation",)}
"""By torch, with DDP, too: the latter trains on a validation's tensors, which are of its inference mode."""
CASES = ["plain", "tied", "bf16-mixed", "bf16-true", "offload", "recompute", "accumulated"]
EQUAL = ["32-true", "16-mixed", "bf16-mixed", "bf16-true", "compiled", "pinned", "fabric"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(480),
    pytest.mark.skipif(ACCELERATOR == "cuda" and not torch.cuda.is_available(), reason="an NVIDIA GPU not found"),
]


LAUNCHES = [
    *((SURFACE, strategy) for strategy in ("smddp", "ddp")),
    *((OWN, strategy) for strategy in ("smddp", "sagemaker", "ddp")),
    *((SHARDED, strategy) for strategy in ("own", "stock") if ACCELERATOR == "cuda"),
]


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """``launch(worker, strategy)``: what the one rank wrote. All begin with the first, on a core each."""
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(max(1, cores // 2)) as pool:
        runs = {one: pool.submit(run, *one, tmp_path_factory.mktemp("gpu")) for one in LAUNCHES}
        yield lambda *one: runs[one].result()


def run(worker: Path, strategy: str, folder: Path) -> dict:
    words = (folder, strategy, ",".join(CASES)) if worker == SHARDED else (strategy, folder)
    torchrun(
        worker,
        *words,
        processes=1,
        LIGHTNING_SAGEMAKER_TEST_ACCELERATOR=ACCELERATOR,
        SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES=str(2**20),
        SCENARIOS=",".join(surface() if worker == SURFACE else OWN_SCENARIOS),
        CUBLAS_WORKSPACE_CONFIG=":4096:8",
    )
    (rank,) = read_ranks(folder)
    return rank


OWN_SCENARIOS = [*EQUAL, "left alone", "resumed", "out of memory"]


def surface() -> list[str]:
    """Scenarios of worker.py that are run here."""
    return [*(name for name in SAME_AS_DDP if name not in ONLY_CPU), "checkpoint", "cli"]


def is_error(result: object) -> bool:
    """Whether a scenario ended with one."""
    return isinstance(result, dict) and set(result) == {"error"}


@pytest.mark.parametrize("scenario", surface())
def test_smddp_equals_ddp_over_lightnings_surface(launch, scenario):
    mine, reference = launch(SURFACE, "smddp")[scenario], launch(SURFACE, "ddp")[scenario]
    if isinstance(reference, dict):  # where the checkpoint is, and the class by name
        mine, reference = ({k: v for k, v in side.items() if k not in ("path",)} for side in (mine, reference))
    if scenario == "cli":
        mine, reference = ([way["weights"] for way in side.values()] for side in (mine, reference))
    elif scenario not in REFUSED[ACCELERATOR]:
        assert not is_error(mine), mine
    assert mine == reference


@pytest.mark.parametrize("strategy", ["smddp", "sagemaker"])
@pytest.mark.parametrize("scenario", EQUAL)
def test_a_gpus_own_equals_ddp(launch, strategy, scenario):
    mine, reference = dict(launch(OWN, strategy)[scenario]), dict(launch(OWN, "ddp")[scenario])
    assert not is_error(mine), mine
    if scenario == "compiled":  # whose kernels are chosen by trying them
        for key in ("losses", "weights"):
            numbers = [[float.fromhex(number) for number in side.pop(key)] for side in (mine, reference)]
            assert numbers[0] == pytest.approx(numbers[1], rel=1e-4, abs=1e-6)
    assert mine == reference
    if scenario == "pinned":
        assert mine["pinned"] is (ACCELERATOR == "cuda")
    if scenario != "fabric":
        assert mine["device"] == ACCELERATOR


def test_the_gradients_take_the_composite_group(launch):
    assert launch(OWN, "smddp")["backend"] == "smddp_composite"
    assert launch(OWN, "ddp")["backend"] == ("nccl" if ACCELERATOR == "cuda" else "gloo")


def test_a_run_that_was_stopped_goes_on_with_the_gpus_random_numbers(launch):
    found = launch(OWN, "smddp")
    assert found["resumed"]["code"] == 143
    assert 0 < len(found["resumed"]["losses"]) < len(found["left alone"]["losses"])
    assert found["left alone"]["losses"][-len(found["resumed"]["losses"]) :] == found["resumed"]["losses"]
    assert found["left alone"]["weights"] == found["resumed"]["weights"]


def test_memory_that_ends_is_the_reason_of_the_failure(launch):
    text = launch(OWN, "smddp")["out of memory"]["text"]
    assert text.startswith("Rank 0 failed after step 7: ")
    assert ("CUDA out of memory" if ACCELERATOR == "cuda" else "allocate memory") in text


@pytest.mark.skipif(ACCELERATOR == "cpu", reason="an NVIDIA GPU not found")
@pytest.mark.parametrize("case", [*CASES, "loop"])
def test_sharded_training_equals_fsdp(launch, case):
    mine, reference = launch(SHARDED, "own")[case], launch(SHARDED, "stock")[case]
    assert mine == reference


@pytest.mark.skipif(ACCELERATOR == "cpu", reason="an NVIDIA GPU not found")
def test_two_ranks_of_a_host_with_one_gpu_are_refused(tmp_path):
    """nccl refuses two ranks on one device; so do we, in one sentence, on both, before a group is made."""
    torchrun(OWN, "smddp", tmp_path, processes=2, CUDA_VISIBLE_DEVICES="0", SCENARIOS="32-true")
    for rank in read_ranks(tmp_path):
        assert "HINT: start 1" in rank["32-true"]["error"]


def test_gradients_are_sent_in_fewer_bits(tmp_path):
    """One process changes nothing but the rounding; PowerSGD leaves out more."""
    torchrun(Path(__file__).with_name("reduction_worker.py"), tmp_path, processes=1)
    (found,) = read_ranks(tmp_path)
    exact = found.pop("None")
    for way in ("bf16", "fp16", "auto"):
        assert found[way] == pytest.approx(exact, rel=0.02), way
    assert found["bf16"] != exact
    assert found["powersgd"][:3] == pytest.approx(exact[:3], rel=1e-4)
    assert found["powersgd"] != exact
    assert found["powersgd"] == pytest.approx(exact, rel=0.1)
