# SPDX-License-Identifier: Apache-2.0
"""From the command to the model: launch -> service -> container -> strategy -> checkpoint -> artefact, on two hosts.

The service takes each request as it came over HTTP and runs it from that alone: its objects in S3, its channels, the
SDK's drivers and ours. What stands for SageMaker are processes for containers; see ``simulator/request_runner.py``.
"""

import csv
import io
import json
import os
import re
import signal
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest

from lightning_sagemaker import cli
from lightning_sagemaker.launch import Estimator, LaunchError
from lightning_sagemaker.launch.planning.plan import announced_strategy, make_plan
from lightning_sagemaker.launch.rehearsal import rehearse
from lightning_sagemaker.launch.transfer import fetch
from lightning_sagemaker.simulator.request_runner import run_request
from tests.launch.seeds import CASES, ROLE, SEEDS, make

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drivers look for processes in /proc")

TYPES = ["--instance-type", "ml.p4d.24xlarge", "--instance-count", "2", "--role", ROLE, "--yes"]
DDP = ({"pytorchddp": {"enabled": True}}, "SageMakerDDPStrategy", "sagemaker_pytorch_ddp_enabled")
TINY = ["--set", "hyperparameters.config=tiny.yaml", "--set", "hyperparameters.max_steps=20"]

SCRIPT = """
import argparse, json, os, pathlib, time
import lightning as L, torch
import lightning_sagemaker

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--fail_at", type=int, default=-1)
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--mp_parameters")
parser.add_argument("--log", default="")  # torchrun has options that begin so
args = parser.parse_args()
job = lightning_sagemaker.SageMakerJob.from_environment()


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        if index == args.fail_at and self.global_rank == 1:
            raise ValueError("no such column: amount")
        time.sleep(args.sleep)
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Begun(L.Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 3:
            (job.output_dir / "begun").touch()


trainer = L.Trainer(
    strategy="sagemaker", max_steps=args.steps, logger=False, enable_progress_bar=False, callbacks=[Begun()],
    enable_checkpointing=False, default_root_dir=job.output_dir,
)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=2))
if trainer.is_global_zero:
    facts = {
        "strategy": type(trainer.strategy).__name__,
        "world": trainer.world_size,
        "bytes": sum(p.stat().st_size for p in job.channels["train"].iterdir()) if "train" in job.channels else 0,
        "files": sorted(p.name for p in job.channels["train"].iterdir()) if "train" in job.channels else [],
        "flags": json.loads(os.environ["SM_FRAMEWORK_PARAMS"]),
        "package": lightning_sagemaker.__file__,
    }
    (job.model_dir / "facts.json").write_text(json.dumps(facts))
"""


class Runner:
    """Runs what the service is sent, and puts where SageMaker would what the hosts leave."""

    def __init__(self, aws, root: Path) -> None:
        self.aws, self.root = aws, root
        self.folders: dict[str, str] = {}

    def __call__(self, request: dict) -> tuple[str, str]:
        name, s3 = request["TrainingJobName"], self.aws.client("s3")
        place, output = self.root / name, io.StringIO()
        stopper = threading.Thread(target=self._stop_when_asked, args=(name, place), daemon=True)
        stopper.start()
        result = run_request(
            request, lambda uri, folder: fetch(s3, uri, folder), place, folders=self.folders, timeout=150, output=output
        )
        lines = output.getvalue().splitlines()
        for host in ("algo-1", "algo-2"):
            own = [line.removeprefix(f"{host} | ") for line in lines if line.startswith(f"{host} |")]
            self.aws.log(name, f"{host}-1700000000", own)
        base = request["OutputDataConfig"]["S3OutputPath"]
        self._pack(s3, f"{base}/{name}/output/model.tar.gz", place.glob("algo-*/model"))
        self._pack(s3, f"{base}/{name}/output/output.tar.gz", place.glob("algo-*/output/data"))
        checkpoints = request.get("CheckpointConfig", {}).get("S3Uri")
        if checkpoints:
            bucket, _, prefix = checkpoints.removeprefix("s3://").partition("/")
            for path in (place / "algo-1" / "checkpoints").rglob("*"):
                if path.is_file():
                    s3.upload_file(str(path), bucket, prefix + path.name)
        failures = sorted(place.glob("algo-*/output/failure"), key=lambda path: path.stat().st_mtime_ns)
        reasons = [path.read_text() for path in failures]
        (place / "result.json").write_text(json.dumps({"returncode": result.returncode}))
        return ("Completed", "") if result.returncode == 0 else ("Failed", (reasons or ["unknown"])[0][:1024])

    def _stop_when_asked(self, name: str, place: Path) -> None:
        """SIGTERM to the first process of each container, which is our driver."""
        while not (place / "result.json").exists():
            if name in self.aws.stopped:
                for pid in drivers(place):
                    os.kill(pid, signal.SIGTERM)
                return
            time.sleep(0.05)

    def _pack(self, s3, uri: str, folders) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for folder in folders:
                for path in sorted(folder.rglob("*")):
                    if path.is_file():
                        archive.add(path, path.relative_to(folder).as_posix())
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        s3.put_object(Bucket=bucket, Key=key, Body=buffer.getvalue())


def drivers(place: Path) -> list[int]:
    """Ids of the drivers that run for the job in ``place``, not those of their ranks."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                variables = (entry / "environ").read_bytes()
            except OSError:
                continue
            words = command.split(b"\0")
            own = len(words) > 1 and words[1].endswith(b"lightning_driver.py") and str(place).encode() in words[1]
            if own and b"LIGHTNING_SAGEMAKER_DRIVER_RANK" not in variables:
                found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def runner(aws, sdk, tmp_path_factory):
    aws.run_job = Runner(aws, tmp_path_factory.mktemp("jobs"))
    yield aws.run_job
    aws.run_job = None


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text(SCRIPT)
    return tmp_path / "source"


def script(source, **more) -> Estimator:
    common = {"role": ROLE, "instance_type": "ml.p4d.24xlarge", "instance_count": 2}
    return Estimator(entry_point="train.py", source_dir=str(source), **common, **more)


def test_a_recipe_from_the_command_to_the_model(aws, runner, tmp_path, capsys):
    """SMDDP on spot instances: launch and follow it, list it, get what it made."""
    begin = set(aws.requests)
    code = cli.main(["launch", "albert-mlm", *TYPES, "--distribution", "smddp", "--spot", "--poll", "0.2", *TINY])
    shown = capsys.readouterr().out
    assert code == 0, shown[-4000:]
    (name,) = set(aws.requests) - begin
    assert "smddp (smddp). The job asks for SMDDP. SMDDP 2.6.0 is installed" in shown
    assert "2 x ml.p4d.24xlarge: 8 A100" in shown
    assert "spot          yes" in shown
    assert f"started: {name}" in shown
    assert "algo-1 | step=20 epoch=0" in shown  # the job's own lines, through CloudWatch
    # In the container the strategy is the one announced; only its engine is the shim, and it says so.
    assert "strategy='sagemaker' is 'smddp' here. The job asks for SMDDP. This is a simulated job" in shown
    assert cli.main(["download", name, str(tmp_path / "got"), "--checkpoints"]) == 0
    metrics = json.loads((tmp_path / "got" / "output" / "metrics.json").read_text())
    assert (metrics["strategy"], metrics["nodes"], metrics["steps"]) == ("SMDDPStrategy", 2, 20)
    assert (tmp_path / "got" / "model" / "model.safetensors").is_file()
    assert (tmp_path / "got" / "model" / "code" / "inference.py").is_file()
    assert (tmp_path / "got" / "checkpoints" / "last.ckpt").is_file()
    with (tmp_path / "got" / "output" / "history" / "metrics.csv").open(newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file) if row.get("loss")] == [10, 20]
    # Every number of the training's lines has a definition by which SageMaker collects it.
    defined = {one["Name"]: one["Regex"] for one in aws.requests[name]["AlgorithmSpecification"]["MetricDefinitions"]}
    line, tested = [line for line in shown.splitlines() if line.startswith("algo-1 | step=20 ")]
    assert "test_loss=" in tested  # of the test that follows; metrics.json has it
    names = {pair.partition("=")[0] for pair in line.removeprefix("algo-1 | ").split()} - {"step"}
    assert names <= set(defined)
    assert all(re.search(defined[one], line) for one in names)
    capsys.readouterr()
    assert cli.main(["jobs", "albert"]) == 0
    assert name in capsys.readouterr().out
    assert cli.main(["logs", name, "--poll", "0.1"]) == 0
    assert "Completed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("distribution", "strategy", "flag"),
    [
        ({"torch_distributed": {"enabled": True}}, "SageMakerDDPStrategy", "sagemaker_torch_distributed_enabled"),
        pytest.param(*DDP, marks=pytest.mark.slow),
    ],
)
def test_a_script_with_data_trains_as_announced(distribution, strategy, flag, aws, runner, source, tmp_path):
    (tmp_path / "data").mkdir()
    for name in ("a.csv", "b.csv"):
        (tmp_path / "data" / name).write_text("1\n")
    (source / "requirements.txt").write_text("lightning\n")
    estimator = script(source, distribution=distribution, hyperparameters={"steps": 3, "log": "x"})
    estimator.fit({"train": str(tmp_path / "data")}, logs=False, poll=0.2)
    (model, _) = estimator.jobs.download(estimator.job_name, tmp_path / "got")
    facts = json.loads((model / "facts.json").read_text())
    assert facts["strategy"] == strategy
    assert announced_strategy(estimator.plan()).name == "ddp"
    assert (facts["world"], facts["files"], facts["flags"][flag]) == (2, ["a.csv", "b.csv"], True)
    assert "/algo-1/site/" in facts["package"]  # the wheel that was sent, not what is installed here


@pytest.mark.slow
def test_model_parallelism_of_a_recipe(aws, runner, tmp_path):
    parallel = {
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2, "microbatches": 2}}}
    }
    estimator = Estimator(
        recipe="sequence-classification",
        role=ROLE,
        instance_type="ml.p4d.24xlarge",
        instance_count=2,
        distribution={**parallel, "mpi": {"enabled": True, "processes_per_host": 1}},
        hyperparameters={"config": "tiny.yaml", "max_steps": 4},
    )
    plan = estimator.plan()
    assert announced_strategy(plan, simulated=True).name == "smp"
    estimator.fit(plan=plan, logs=False, poll=0.2)
    estimator.jobs.download(estimator.job_name, tmp_path / "got")
    metrics = json.loads((tmp_path / "got" / "output" / "metrics.json").read_text())
    assert (metrics["strategy"], metrics["processes"]) == ("SMPStrategy", 2)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_request_runs(case, aws, runner, tmp_path):
    """Each of those that are compared with the golden file, with a few steps of a small model."""
    (tmp_path / "data").mkdir()
    (tmp_path / "source").mkdir()
    estimator, inputs = make(case, tmp_path / "source")
    small = {} if case in SEEDS else {"config": "tiny.yaml", "max_steps": 4}
    estimator.config = estimator.config.changed(
        hyperparameters={**estimator.config.hyperparameters, **small}, inputs=inputs, output_path=None
    )
    runner.folders = {name: str(tmp_path / "data") for name in inputs or ()}
    try:
        estimator.fit(logs=False, poll=0.2)
    finally:
        runner.folders = {}
    assert estimator.latest_training_job.status == "Completed"
    if case not in SEEDS:
        estimator.jobs.download(estimator.job_name, tmp_path / "got")
        metrics = json.loads((tmp_path / "got" / "output" / "metrics.json").read_text())
        kinds = {"smddp": "SMDDP", "ddp": "SageMakerDDP", "smp": "SMP"}
        announced = announced_strategy(estimator.plan(), simulated=True).name
        assert metrics["strategy"].startswith(kinds[announced])
        assert metrics["processes"] == 2


def test_a_rehearsal_takes_a_part_of_the_data(sdk, source, tmp_path, capsys):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("text,label\n" * 600_000)  # 6.6 MB
    (tmp_path / "data" / "b.bin").write_bytes(b"x" * 100)
    command = ["launch", "train.py", "--source-dir", str(source), *TYPES[:-1], "--distribution", "smddp", "--rehearse"]
    command += ["--channel", f"train={tmp_path / 'data'}", "--rehearse-set", "steps=2", "--rehearse-hosts", "1"]
    command += ["--rehearse-root", str(tmp_path / "rehearsal")]
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    assert "rehearsal        passed" in shown, shown[-3000:]
    assert "started: " not in shown  # nor is the job
    assert int(re.search(r"largest process +(\d+) MiB", shown).group(1)) > 50
    facts = json.loads((tmp_path / "rehearsal" / "algo-1" / "model" / "facts.json").read_text())
    assert (facts["world"], facts["strategy"]) == (1, "SMDDPStrategy")
    assert facts["files"] == ["a.csv"]
    assert facts["bytes"] <= 4 * 2**20
    assert "Environment Variables" in (tmp_path / "rehearsal" / "log").read_text()
    assert "Environment Variables" not in shown
    with pytest.raises(LaunchError, match="something other than a rehearsal"):
        rehearse(make_plan(script(source).config), tmp_path / "data")


@pytest.mark.slow
def test_a_failing_rank_gives_the_jobs_reason(aws, runner, source):
    estimator = script(source, distribution="smddp", hyperparameters={"fail_at": 1})
    with pytest.raises(LaunchError, match="failed: .*ValueError: no such column: amount"):
        estimator.fit(logs=False, poll=0.2)


def test_stopping_a_job_reaches_every_rank(aws, runner, source, tmp_path):
    """SIGTERM to the containers' first processes: every rank stops at the same step, with a checkpoint."""
    estimator = script(source, distribution="smddp", hyperparameters={"steps": 2000, "sleep": 0.05})
    config = estimator.config.changed(checkpoint_s3_uri="s3://sagemaker-us-east-1-123456789012/stopped/")
    estimator.config = config
    estimator.fit(wait=False)
    place = runner.root / estimator.job_name
    deadline = time.monotonic() + 90
    while len(list(place.glob("algo-*/output/data/begun"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    estimator.stop()
    begin = time.monotonic()
    assert estimator.wait(logs=False, poll=0.2).status == "Stopped"
    assert time.monotonic() - begin < 30
    log = "\n".join(line for _, line in estimator.jobs.new_lines(estimator.job_name, {}))
    assert log.count("SIGTERM: forwarded to the training processes") == 2, log[-3000:]
    assert json.loads((place / "result.json").read_text())["returncode"] == 143
    kept = list((place / "algo-1" / "checkpoints").iterdir())
    assert kept, log[-3000:]


def test_the_same_plan_is_announced_for_a_rehearsal(source):
    plan = make_plan(script(source, distribution="smddp").config)
    assert announced_strategy(plan).name == announced_strategy(plan, simulated=True).name == "smddp"
