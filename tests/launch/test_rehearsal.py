# SPDX-License-Identifier: Apache-2.0
"""A launch and its rehearsal on a machine without the SDK, an account or a role."""

import json
import os
import subprocess
import sys

import pytest

from lightning_sagemaker.launch import Estimator, LaunchError, rehearsal
from tests.conftest import ROOT
from tests.launch.seeds import ROLE

NOT_INSTALLED = """
import importlib.abc, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("sagemaker", "boto3", "botocore"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from lightning_sagemaker.cli import main
code = main(sys.argv[1:])
assert "torch" not in sys.modules and "lightning" not in sys.modules
sys.exit(code)
"""


def test_without_the_sdk_a_dry_run_works_and_a_launch_says_what_to_install():
    job = ["launch", "albert-mlm", "--instance-type", "ml.p4d.24xlarge", "--instance-count", "2"]
    run = [sys.executable, "-c", NOT_INSTALLED, *job, "--distribution", "smddp"]
    dry = subprocess.run([*run, "--dry-run"], capture_output=True, text=True, timeout=60)
    assert dry.returncode == 0, dry.stderr
    request = json.loads(dry.stdout)
    assert request["ResourceConfig"]["InstanceCount"] == 2
    assert "smddp (smddp)" in dry.stderr
    assert request["RoleArn"].startswith("MISSING: ")
    refused = subprocess.run([*run, "--role", ROLE, "--yes"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "lightning-sagemaker[launch]" in refused.stderr


def test_every_host_of_a_rehearsal_gets_a_part_of_what_is_shared_out(aws, tmp_path, monkeypatch):
    """In the job, an object goes to one of the hosts, and a manifest stands for what it lists."""
    monkeypatch.setattr(rehearsal, "SAMPLE_BYTES", 5)
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="shared-out")
    (tmp_path / "local").mkdir()
    for name in ("a.bin", "b.bin", "c.bin"):
        s3.put_object(Bucket="shared-out", Key=f"data/{name}", Body=b"12345678")
        (tmp_path / "local" / name).write_bytes(b"12345678")
    listed = [{"prefix": "s3://shared-out/data/"}, "c.bin", "b.bin"]
    s3.put_object(Bucket="shared-out", Key="train.manifest", Body=json.dumps(listed).encode())
    shared = {"distribution": "ShardedByS3Key"}
    inputs = {
        "all": {"s3_data": "s3://shared-out/data/"},
        "shared": {"s3_data": "s3://shared-out/data/", **shared},
        "listed": {"s3_data": "s3://shared-out/train.manifest", "s3_data_type": "ManifestFile", **shared},
        "local": {"s3_data": str(tmp_path / "local"), **shared},
    }
    plan = Estimator(recipe="albert-mlm", instance_type="ml.g5.xlarge", instance_count=2).plan(inputs)
    found = rehearsal._samples(plan, tmp_path / "scratch", {})
    assert {name: sorted(os.listdir(folder)) for name, folder in found.items()} == {
        "all": ["a.bin"],
        "shared": ["a.bin", "b.bin"],
        "listed": ["b.bin", "c.bin"],
        "local": ["a.bin", "b.bin"],
    }
    with pytest.raises(LaunchError, match="Channel 'train': no objects begin with s3://shared-out/dada, so the job"):
        rehearsal._samples(
            Estimator(recipe="albert-mlm").plan({"train": "s3://shared-out/dada"}), tmp_path / "none", {}
        )


def test_named_pipes_are_refused_in_a_rehearsal(tmp_path):
    """A folder in their place would be another program's input."""
    inputs = {"all": {"s3_data": "s3://bucket/data/", "input_mode": "File"}, "train": "s3://bucket/train/"}
    plan = Estimator(recipe="albert-mlm", instance_type="ml.g5.xlarge", input_mode="Pipe").plan(inputs)
    with pytest.raises(
        LaunchError, match="Channel 'train' is read from named pipes .*HINT:.*--rehearse-channel train=DIR"
    ):
        rehearsal.rehearse(plan, tmp_path / "root")
    rehearsal._check(plan, {"train": str(tmp_path)}, None)


SCRIPT = """
import json, os, sys
print("arguments", sys.argv[1:], "channel", os.listdir(os.environ["SM_CHANNEL_TRAIN"]), os.environ["SM_HP_TEXT"])
print("flags", json.loads(os.environ["SM_FRAMEWORK_PARAMS"]), os.getcwd() == os.environ["SM_SOURCE_DIR"])
sys.exit(int(sys.argv[sys.argv.index("--code") + 1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="drivers look for processes in /proc")
def test_a_rehearsal_needs_neither_role_nor_account_nor_sdk_and_ends_with_the_scripts_code(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "data").mkdir()
    for name in ("a.csv", ".env"):
        (tmp_path / "data" / name).write_text("1,2\n")
    run = [sys.executable, "-c", NOT_INSTALLED, "launch", "train.py", "--rehearse", "--channel", "train=data"]
    run += ["--text", "it's 1.10", "--instance-type", "ml.g5.xlarge", "--rehearse-root", "here"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | {"HOME": str(tmp_path)}
    clean["PYTHONPATH"] = str(ROOT / "src")
    ends = {}
    for code, more in ((0, ["--dry-run"]), (3, [])):
        done = subprocess.run(
            [*run, "--code", str(code), *more], cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=200
        )
        ends[code] = done
        assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
    both = ends[0].stderr
    assert json.loads(ends[0].stdout)["HyperParameters"]["code"] == "0"
    assert "using a stand-in for its start script" in both
    assert "arguments ['--code', '0', '--text', \"it's 1.10\"] channel ['a.csv'] it's 1.10" in both
    assert "flags {} True" in both
    assert "rehearsal        passed" in both
    assert "rehearsal        failed, exit code 3" in ends[3].stdout
    assert "not sent      inputs/train/.env (credentials)" in ends[3].stdout
