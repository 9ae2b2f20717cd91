# SPDX-License-Identifier: Apache-2.0
"""A training that is interrupted, killed and ended is one offline run of W&B, as W&B's own reader sees it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_sagemaker import OfflineWandbLogger, SageMakerJob
from lightning_sagemaker.loggers import wandb_logger
from lightning_sagemaker.loggers.journal import Journal
from lightning_sagemaker.loggers.wandb_export import read
from tests.chaos.wandb_worker import STEPS
from tests.conftest import run_bounded

PACKAGES = Path(__file__).parents[2] / ".containers" / "wandb"
WORKER = Path(__file__).with_name("wandb_worker.py")
READ = """
import json, sys
from wandb.proto import wandb_internal_pb2

BLOCK, HEADER, FIRST, LAST = 32768, 7, (1, 2), (1, 4)  # a file of LevelDB's log format, after a header of its own

def records(data):
    place, parts = HEADER, []
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts = ([] if kind in FIRST else parts) + [data[place + HEADER : place + HEADER + length]]
        if kind in LAST:
            yield b"".join(parts)
        place += HEADER + length

found = {"rows": [], "config": {}, "ids": []}
for data in records(open(sys.argv[1], "rb").read()):
    record = wandb_internal_pb2.Record()
    record.ParseFromString(data)
    kind = record.WhichOneof("record_type")
    if kind == "history":
        row = {one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in record.history.item}
        found["rows"].append(row)
    elif kind == "run":
        found["ids"].append([record.run.project, record.run.display_name, record.run.run_id])
        found["config"] |= {one.key: json.loads(one.value_json) for one in record.run.config.update}
    elif kind == "exit":
        found["exit"] = record.exit.exit_code
print(json.dumps(found))
"""


def test_each_step_is_once_with_its_first_value(tmp_path):
    journal = Journal(tmp_path, "k")
    journal.append({"about": {"project": "p", "name": None, "tags": []}}, {"start": "a"}, {"params": {"rate": 1}})
    journal.append(*({"t": 0, "step": step, "metrics": {"loss": 1.0 + step}} for step in range(3)))
    journal.append({"t": 0, "step": 2, "metrics": {"val_loss": 9.0}}, {"status": "KILLED"}, {"start": "b"})
    journal.append({"params": {"rate": 2, "more": 3}}, {"t": 1, "step": 1, "metrics": {"loss": -1.0}})
    steps = {0: {"loss": 1.0}, 1: {"loss": 2.0}, 2: {"loss": 3.0, "val_loss": 9.0}}
    assert read(journal)[1:] == (steps, {"rate": 1, "more": 3}, None)
    journal.append({"status": "FINISHED"})
    assert read(journal)[3] == "FINISHED"


@pytest.fixture
def client(monkeypatch):
    """As if the client were there; it is asked for nothing before a training ends."""
    monkeypatch.setattr(wandb_logger, "find_spec", lambda _: True)


def test_a_jobs_file_outlives_an_interruption_and_its_run_the_job(client, tmp_path, monkeypatch):
    for name in ("SM_OUTPUT_DATA_DIR", "SM_MODEL_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("SM_CURRENT_HOST", "algo-1")
    monkeypatch.setenv("SM_HOSTS", '["algo-1"]')
    monkeypatch.setenv("TRAINING_JOB_NAME", "fraud-1")
    logger, job = OfflineWandbLogger("fraud"), SageMakerJob.from_environment()
    assert job.in_container
    assert logger.save_dir == str(job.checkpoint_dir / "wandb")
    assert logger.run_folder == job.output_dir / "wandb" / "offline-run-fraud-1"


@pytest.mark.slow  # W&B's client is 100 MB
@pytest.mark.skipif(not PACKAGES.is_dir(), reason="W&B was not brought by `make test-slow`")
def test_interrupted_killed_and_ended(tmp_path):
    environment = {"PYTHONPATH": str(PACKAGES)}
    codes = []
    for name, step in (("SIGTERM", 7), ("SIGKILL", 25), ("SIGKILL", -1)):
        codes.append(run_bounded([sys.executable, WORKER, tmp_path, name, step], **environment).returncode)
    assert codes == [143, -9, 0]
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    (file,) = run.glob("*.wandb")
    command = [sys.executable, "-c", READ, file]
    answer = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert [row["_step"] for row in found["rows"]] == [*range(STEPS)]
    assert all(row["loss"] > 0 for row in found["rows"])
    assert {tuple(one) for one in found["ids"]} == {("strikes", "one", run.name.removeprefix("offline-run-"))}
    assert found["config"]["rate"] == 0.1
    assert found["exit"] == 0
    assert not [path for path in (tmp_path / "wandb").iterdir() if path.name.startswith(".wandb-")]
