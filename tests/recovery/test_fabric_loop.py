# SPDX-License-Identifier: Apache-2.0
"""Loops of one's own with Fabric under ``lightning-sagemaker supervise``: ranks are killed, or the loop is wrong."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_sagemaker import InterruptibleLoop
from lightning_sagemaker.recovery.coordinator_client import RecoveryError
from lightning_sagemaker.recovery.fabric_loop import InJobLoop
from lightning_sagemaker.recovery.fabric_steps import FabricSteps
from tests.chaos.recovery import Setting, compare, rows, run, start
from tests.conftest import fork_ranks
from tests.recovery.test_in_job import steps_of, wait_for

TWO = Setting(2, optimizer="adamw", samples=600, epochs=2, norm=1, script="recovery_fabric.py")
DROPPING = Setting(2, optimizer="adamw", samples=600, epochs=2, dropout=0.2, script="recovery_fabric.py")
WRONG = Path(__file__).parent / "wrong_fabric.py"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are supervised on Linux")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that nobody disturbs."""
    folder = tmp_path_factory.mktemp("alone") / "job"
    assert run(TWO, folder, None).code == 0, (folder / "output.txt").read_text()
    return folder


def test_nothing_is_lost_with_a_rank(alone, tmp_path):
    outcome = run(TWO, tmp_path / "job", random.Random(1), 3, ["kill the first", "kill the replacement"])
    assert (outcome.code, outcome.problems) == (0, []), (tmp_path / "job/output.txt").read_text()
    assert len(outcome.gaps) >= 2
    assert compare(alone, tmp_path / "job", TWO, 3) == []
    assert max(gap for _, gap in outcome.gaps) < 10


def _losses(folder: Path) -> dict[tuple[Any, ...], float]:
    found = {}
    for path in folder.glob("rank-*.jsonl"):
        for row in rows(path):
            found[(row["epoch"], row["batch"], *row["samples"])] = row["loss"]
    return found


def test_what_dropout_draws_does_not_depend_on_lost_ranks(tmp_path):
    assert run(DROPPING, tmp_path / "alone", None).code == 0
    outcome = run(DROPPING, tmp_path / "job", random.Random(2), 2, ["kill", "kill the first"])
    assert (outcome.code, outcome.problems) == (0, []), (tmp_path / "job/output.txt").read_text()
    assert compare(tmp_path / "alone", tmp_path / "job", DROPPING, 2) == []


def test_equals_stock_ddp(alone, tmp_path):
    """Fabric's own DDP under torchrun, which knows nothing of this package."""
    fork_ranks(TWO.program, tmp_path, *TWO.arguments, "--strategy", "ddp", processes=2)
    stock, own = _losses(tmp_path), _losses(alone)
    assert len(stock) == 152
    assert own == stock
    weights = [torch.load(place / "weights-0.pt") for place in (tmp_path, alone)]
    assert all(torch.equal(weights[0][name], value) for name, value in weights[1].items())


def test_a_loop_without_ours_equals_stock_ddp_and_says_that_it_does_not_recover():
    script, found = str(Path(__file__).parent / "plain_fabric.py"), []
    torchrun = ["torch.distributed.run", "--nproc-per-node", "2", "--standalone", script, "ddp"]
    supervise = ["lightning_sagemaker.cli", "supervise", "--processes", "2", script, "sagemaker"]
    for command in (torchrun, supervise):
        done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        found.append([line for line in done.stdout.splitlines() if line.startswith("found")])
    assert len(found[0]) == 1
    assert found[0] == found[1]
    assert "This loop is not an InterruptibleLoop: a rank that dies ends the job" in done.stdout + done.stderr


def test_asked_to_stop_it_saves_and_goes_on_from_there(alone, tmp_path):
    process = start(TWO, tmp_path)
    wait_for(lambda: len(steps_of(tmp_path)) > 3, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143, (tmp_path / "output.txt").read_text()
    assert "is lost" not in (tmp_path / "output.txt").read_text()
    again = start(TWO, tmp_path)
    assert again.wait(60) == 0, (tmp_path / "output.txt").read_text()
    assert "Resuming from step" in (tmp_path / "output.txt").read_text()
    assert compare(alone, tmp_path, TWO, 0) == []


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("closure", "optimizer.step was given a closure"),
        ("loops", "an epoch has a second loop over batches"),
        pytest.param("sampler", "with the sampler Own", marks=pytest.mark.slow),
        pytest.param("two", "fabric.backward was called after optimizer.step within one batch", marks=pytest.mark.slow),
    ],
)
def test_a_loop_that_cannot_recover_is_restarted_unless_that_was_asked_for(tmp_path, wrong, sentence):
    for words, code in ((f"asked {wrong}", 1), (wrong, 0)):
        place = tmp_path / words
        place.mkdir()
        process = start(TWO, place, training=WRONG, words=[words])
        assert process.wait(120) == code
        said = (place / "output.txt").read_text()
        assert re.search(f"(?:under supervise\\)|restarted): .*{sentence}", said), said
        assert ("They are started again now" in said) is (code == 0)
        assert ("HINT: set recovery='restart'" in said) is (code != 0)


@pytest.mark.slow
def test_a_batch_that_kills_whoever_trains_on_it_ends_the_job(tmp_path):
    (tmp_path / "job").mkdir()
    setting = Setting(3, samples=900, script="recovery_fabric.py")
    process = start(setting, tmp_path / "job", "--attempts", "2", training=WRONG, words=["poison"])
    assert process.wait(120) == 1
    said = (tmp_path / "job/output.txt").read_text()
    assert "has failed 2 times; each time a rank was lost" in said, said
    assert list((tmp_path / "job/checkpoints").glob("*.ckpt"))


def test_a_subclass_is_refused_rather_than_left_without_its_init():
    class Own(InterruptibleLoop):
        pass

    fabric = SimpleNamespace(strategy=SimpleNamespace(loop_kind=InJobLoop))
    with pytest.raises(TypeError, match="the loop is a Own, not InJobLoop. HINT"):
        Own(fabric, "checkpoints", {})


def test_a_second_optimizer_may_step_after_the_first_but_not_after_another_backward_pass():
    steps = FabricSteps(None, 2, None)
    with steps.one_pass(None, []):
        with steps.backward([]):
            pass
        steps.stepped = True
        with pytest.raises(RecoveryError, match="fabric.backward was called after optimizer.step"), steps.backward([]):
            pass
    with steps.one_pass(None, []), steps.backward([]):
        pass


def test_a_loss_after_the_step_leaves_the_gradients_averaged():
    """An evaluation that is repeated then uses the buffers of the step's end, not those of its start."""
    steps = FabricSteps(None, 2, None)
    steps.averaged = steps.stepped = True
    steps.begin_quorum()
    assert steps.averaged


@pytest.mark.parametrize("zeroes", [False, True])
def test_an_adopted_pass_changes_no_gradient_of_the_own_shard(zeroes):
    """Whatever its body does with gradients, and however many backward passes it makes."""
    steps, weight = FabricSteps(None, 2, None), torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([1.0, 2.0])  # of an earlier batch of the own shard
    with steps.one_pass(1, [weight]):
        if zeroes:
            weight.grad.zero_()
        for _ in range(2):
            with steps.backward([weight], averages=False):
                (3 * weight).sum().backward()
            assert weight.grad is None
        assert not steps.average([weight], 0, torch.zeros(2))
        weight.grad = None  # optimizer.zero_grad()
    assert weight.grad.tolist() == [1, 2]
    # Averaged gradients are everybody's, so those of a later pass are added to them: (1, 2) + 3 + 3.
    assert [part[weight].tolist() for part in steps._adopted._parts[1]] == [[6, 6] if zeroes else [7, 8]]
