# SPDX-License-Identifier: Apache-2.0
"""Real jobs under ``lightning-sagemaker supervise``, whose ranks are killed, frozen, asked to stop, or wrong."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from lightning.pytorch import callbacks

from lightning_sagemaker.checkpoint.find import STATE
from lightning_sagemaker.recovery import wire
from lightning_sagemaker.recovery.coordinator_client import RecoveryError
from lightning_sagemaker.recovery.refused import CannotRecover, check, restarting_instead
from tests.chaos.recovery import Setting, compare, inflict, rows, run, start

TWO = Setting(2, optimizer="adamw", samples=600, epochs=2, limit=5)
WRONG = Path(__file__).parent / "wrong_training.py"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ranks are supervised on Linux")


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)


def _processes() -> dict[int, list[str]]:
    """Number -> words of the command; a machine may have no ``ps``."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found[int(place.name)] = (place / "cmdline").read_bytes().decode(errors="replace").split("\0")
    return found


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def steps_of(folder: Path) -> list[Any]:
    return [row for row in rows(folder / "steps.jsonl") if row[0] == "step"]


def test_nothing_is_lost_with_a_rank(alone, tmp_path):
    outcome = run(TWO, tmp_path / "job", random.Random(1), 3, ["kill the first", "kill the replacement"])
    assert (outcome.code, outcome.problems) == (0, []), (tmp_path / "job/output.txt").read_text()
    assert len(outcome.gaps) >= 2
    assert compare(alone, tmp_path / "job", TWO, 3) == []
    assert max(gap for _, gap in outcome.gaps) < 10


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that nobody disturbs."""
    folder = tmp_path_factory.mktemp("alone") / "job"
    assert run(TWO, folder, None).code == 0, (folder / "output.txt").read_text()
    return folder


def test_a_replacement_has_the_validation_loaders_that_the_others_have(tmp_path):
    """They requested them in the sanity check, and the first epoch has no validation."""
    setting = Setting(2, samples=400, epochs=2, every=2)
    outcome = run(setting, tmp_path / "job", random.Random(1), 1, ["kill"])
    said = (tmp_path / "job/output.txt").read_text()
    assert (outcome.code, outcome.problems) == (0, []), said
    assert "2 of 2 ranks continue" in said
    assert len([row for row in rows(tmp_path / "job/steps.jsonl") if row[0] == "validation"]) == 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_is_lost_of_an_order_that_the_script_draws(tmp_path):
    """Lightning wraps a WeightedRandomSampler, whose order each rank draws for itself."""
    setting = Setting(3, dropout=0.2, samples=900, epochs=3, workers=1, order="weighted")
    assert run(setting, tmp_path / "alone", None).code == 0
    outcome = run(setting, tmp_path / "job", random.Random(1), 4, ["kill", "kill the first"])
    assert (outcome.code, outcome.problems) == (0, []), (tmp_path / "job/output.txt").read_text()
    assert compare(tmp_path / "alone", tmp_path / "job", setting, 4) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_ranks_and_every_fault(tmp_path):
    setting = Setting(3, samples=1500, accumulate=2, workers=2)
    assert run(setting, tmp_path / "alone", None).code == 0
    outcome = run(setting, tmp_path / "job", random.Random(3), 10)
    assert (outcome.code, outcome.problems) == (0, [])
    assert compare(tmp_path / "alone", tmp_path / "job", setting, 10) == []


def test_asked_to_stop_it_saves_and_goes_on_from_there(tmp_path):
    setting = Setting(2, epochs=20)
    process = start(setting, tmp_path)
    wait_for(lambda: len(steps_of(tmp_path)) > 3, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143, (tmp_path / "output.txt").read_text()
    said = (tmp_path / "output.txt").read_text()
    assert "is lost" not in said
    saved = steps_of(tmp_path)[-1][1]
    assert (tmp_path / f"checkpoints/auto-step={saved}.ckpt").is_file()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_checkpoint_of_a_smaller_quorum_is_resumed_by_all_ranks(tmp_path):
    """The order is drawn by the script, so the place in it follows from the shards alone."""
    setting = Setting(3, samples=1800, epochs=2, dropout=0.2, order="weighted")
    assert run(setting, tmp_path / "alone", None).code == 0
    folder = tmp_path / "job"
    folder.mkdir()
    process = start(setting, folder, "--no-preload")  # a replacement takes seconds then
    wait_for(lambda: len(steps_of(folder)) > 9, process)
    inflict("kill the first", folder, 3, random.Random(0))  # so that the order of the others is not that of the shards
    wait_for(lambda: len(steps_of(folder)) > 44, process)
    assert "3 of 3 ranks continue" not in (folder / "output.txt").read_text()
    for rank in (1, 2):
        os.kill(int((folder / f"pid-{rank}").read_text()), signal.SIGKILL)
    assert process.wait(150) == 0, (folder / "output.txt").read_text()
    said = (folder / "output.txt").read_text()
    assert "Resuming from step 37" in said or "Resuming from step 38" in said
    assert "The checkpoint was saved on" not in said
    problems = compare(tmp_path / "alone", folder, setting, 3)
    # Steps after the checkpoint were made twice: by two ranks, and by three, whose sum has another order.
    assert [problem for problem in problems if "ranks had other weights" not in problem] == []


def test_a_checkpoint_amid_accumulated_gradients_is_that_of_the_step_before_on_a_replacement_too(tmp_path):
    """Its last step was another process's."""
    setting = Setting(2, accumulate=2, samples=14 * 8 * 2, epochs=1, rejoin_timeout=60)
    process = start(setting, tmp_path, training=WRONG, words=["dies before a validation"])
    assert process.wait(60) == 0, (tmp_path / "output.txt").read_text()
    assert "2 of 2 ranks continue after step 3" in (tmp_path / "output.txt").read_text()
    state = torch.load(tmp_path / "checkpoints/epoch=0-step=3.ckpt", weights_only=True)[STATE]
    taken = [own["loaders"]["training"][0]["taken"] for own in state["ranks"]]
    assert [state["batches"], *taken] == [6, 6, 6]  # though the validation is after the seventh


def test_a_file_that_is_saved_again_after_a_loss_has_no_other_name(tmp_path):
    """Rank zero dies between its checkpoint and the barrier after it; the validation is re-run, and its checkpoint."""
    process = start(Setting(2, samples=16 * 16, epochs=1), tmp_path, training=WRONG, words=["dies once it has saved"])
    assert process.wait(60) == 0, (tmp_path / "output.txt").read_text()
    assert "continue after step 8" in (tmp_path / "output.txt").read_text()
    found = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert found == ["epoch=0-step=16.ckpt", "epoch=0-step=8.ckpt", "last.ckpt"]


def test_a_job_ends_whose_ranks_are_all_lost_if_one_of_them_is_not_replaced(tmp_path):
    """Its replacement would wait for the other for ever."""
    setting = Setting(2, samples=3200, epochs=1)
    words = ["rank 1 again and again, rank 0 once"]
    process = start(setting, tmp_path, "--max-restarts", "1", training=WRONG, words=words)
    try:
        assert process.wait(60) not in (0, None)
    finally:
        process.kill()
    said = (tmp_path / "output.txt").read_text()
    assert "rank 1 ended with signal 9, and is not replaced: --max-restarts is 1." in said
    assert "all ranks are lost, and one of this host is not replaced: the job ends." in said


def test_a_batch_that_kills_whoever_trains_on_it_ends_the_job(tmp_path):
    (tmp_path / "job").mkdir()
    process = start(Setting(3), tmp_path / "job", "--attempts", "2", training=WRONG, words=["poison"])
    assert process.wait(120) == 1
    said = (tmp_path / "job/output.txt").read_text()
    assert "Step 6 has failed 2 times; each time a rank was lost (rank 1, rank " in said
    assert (tmp_path / "job/checkpoints/auto-step=5.ckpt").is_file()


def test_a_wrong_script_ends_before_the_first_step(tmp_path):
    process = start(Setting(2), tmp_path, training=WRONG, words=["bug"])
    assert process.wait(120) == 1
    said = (tmp_path / "output.txt").read_text()
    assert "ValueError: a bug of the script" in said
    assert "starting a replacement" not in said


@pytest.mark.parametrize("wrong", [pytest.param("sampler", marks=pytest.mark.slow), "schedule"])
def test_ranks_of_a_script_that_cannot_recover_are_started_again_and_restarted_together(tmp_path, wrong):
    process = start(Setting(2), tmp_path, training=WRONG, words=[wrong])
    wait_for(lambda: len(steps_of(tmp_path)) > 9, process)
    inflict("kill the first", tmp_path, 2, random.Random(0))
    assert process.wait(120) == 0
    said = (tmp_path / "output.txt").read_text()
    assert said.count("all ranks are restarted: the training data comes from a DataLoader with the sampler Own") == 1
    assert said.count("is lost after step") == said.count("starting a replacement") == 1
    assert said.count("Recovery by restarts") == 2


def test_asked_to_recover_a_script_that_cannot_is_refused():
    matching = pytest.raises(
        RecoveryError, match="cannot recover in the job .* there are 2 .*HINT: set recovery='restart'"
    )
    with matching, restarting_instead(cast(Any, None), is_asked=True):
        raise CannotRecover("there are 2 training loaders")


@pytest.mark.parametrize(
    "callback",
    [
        callbacks.EMAWeightAveraging(),
        callbacks.StochasticWeightAveraging(0.01),
        callbacks.ModelPruning("l1_unstructured"),
        callbacks.BackboneFinetuning(verbose=False),
        callbacks.LearningRateFinder(),
    ],
)
def test_callbacks_that_a_replacement_could_not_follow_are_refused(callback):
    trainer = SimpleNamespace(lightning_module=SimpleNamespace(automatic_optimization=True), callbacks=[callback])
    with pytest.raises(RecoveryError, match=f"{type(callback).__name__} was given: .*HINT"):
        check(trainer)


def test_steps_of_manual_optimization_cannot_be_told():
    trainer = SimpleNamespace(lightning_module=SimpleNamespace(automatic_optimization=False), callbacks=[])
    with pytest.raises(RecoveryError, match="the module uses manual optimization"):
        check(trainer)


def test_a_script_whose_own_exit_code_is_that_of_one_that_cannot_recover_is_not_started_for_ever(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"open({str(tmp_path / 'starts')!r}, 'a').write('.'); raise SystemExit({wire.CANNOT})")
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "supervise", "--no-preload", "--processes", "1"]
    assert subprocess.run([*command, str(script)], timeout=60).returncode == wire.CANNOT
    assert (tmp_path / "starts").read_text() == ".."


def test_a_script_that_does_not_start_leaves_nothing_behind(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(300)")
    command = [
        sys.executable,
        "-m",
        "lightning_sagemaker.cli",
        "supervise",
        "--no-preload",
        "--processes",
        "2",
        str(script),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "rank 1 ended with exit code 3 before the first step, and is not replaced." in done.stderr
    assert not [pid for pid, words in _processes().items() if str(script) in words]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["missing.py"], "missing.py does not exist. HINT"),
        (["--hosts", "2", "x.py"], "--hosts 2 was set without --coordinator"),
        (["--minimum", "3", "--processes", "2", "x.py"], "--minimum 3 was set, with 2 rank(s)"),
        (["--host-rank", "1", "x.py"], "--host-rank 1 was set, with 1 host(s)"),
        (["--hosts", "2", "--coordinator", "10.0.0.1", "x.py"], "--coordinator 10.0.0.1 has no port"),
    ],
)
def test_wrong_options_are_one_sentence(options, sentence):
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "supervise", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "SM_NUM_GPUS": "0"})
    assert done.returncode != 0
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_what_ranks_are_forked_from_may_die_too(alone, tmp_path):
    """All ranks of the host are killed with it: the job goes on from a checkpoint, and each rank imports for itself."""
    (tmp_path / "job").mkdir()
    process = start(TWO, tmp_path / "job")
    wait_for(lambda: len(steps_of(tmp_path / "job")) > 25, process)
    (template,) = (
        pid
        for pid, words in _processes().items()
        if any("supervisor import template" in word for word in words) and _parent(pid) == process.pid
    )
    os.kill(template, signal.SIGKILL)
    assert process.wait(120) == 0, (tmp_path / "job/output.txt").read_text()
    assert "Resuming from step 19" in (tmp_path / "job/output.txt").read_text()
    assert compare(alone, tmp_path / "job", TWO, 1) == []


def test_a_fault_is_one(tmp_path):
    """The faults themselves: a signal arrives at the rank that it is meant for."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    (tmp_path / "pid-0").write_text(str(process.pid))
    inflict("kill the first", tmp_path, 1, random.Random(0))
    assert process.wait(10) == -signal.SIGKILL
