# SPDX-License-Identifier: Apache-2.0
"""What the plan says to whoever reads it: SMDDP, batch size, price, secrets."""

import pytest

from lightning_sagemaker.launch import Estimator, JobConfig
from lightning_sagemaker.launch.planning.plan import make_plan
from lightning_sagemaker.launch.planning.report import describe, exposed
from tests.launch.jobs import P4D, SMDDP, partitions


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"distribution": SMDDP}, "2.6.0: AllReduce by smddp, AllGather by nccl. SMDDP started by mpirun"),
        (
            {"distribution": "torch_distributed", "pytorch_version": "2.5.1"},
            "2.6.0: AllReduce by nccl, AllGather by smddp. SMDDP started by torchrun",
        ),
        (
            {"distribution": "ddp", "pytorch_version": "2.5.1", "environment": {"SMDATAPARALLEL_OPTIMIZE_SDP": "true"}},
            "2.6.0: AllReduce by nccl, AllGather by smddp. SMDDP started by mpirun with SMDATAPARALLEL_OPTIMIZE_SDP=true",
        ),
        ({"distribution": SMDDP, "pytorch_version": "2.0.1"}, "SMDDP 2.0.2 leaks CPU memory in AllReduce"),
        ({"distribution": "torch_distributed"}, None),  # the default image has no SMDDP
    ],
)
def test_the_plan_says_what_smddp_takes(change, words):
    rows = dict(describe(make_plan(JobConfig.from_mapping({**P4D, **change}))))
    assert ("smddp" in rows) is (words is not None)
    assert words is None or words in rows["smddp"]


def test_the_plan_says_the_global_batch_and_the_price():
    rows = dict(describe(make_plan(JobConfig.from_mapping({**P4D, "distribution": SMDDP, "max_run": 3600}))))
    assert rows["cost"].startswith("$50.50 an hour; at most $50.50 (1 h); prices of us-east-1, 2026-")
    assert rows["global batch"] == "256 (global_batch_size)"
    values = {"per_device_train_batch_size": 4}
    rows = dict(describe(make_plan(JobConfig.from_mapping({**P4D, "hyperparameters": values, "distribution": "ddp"}))))
    assert rows["global batch"].startswith("64: 4 (per_device_train_batch_size) x 16 processes")
    parallel = {**P4D, "hyperparameters": values, "distribution": partitions(2)}
    assert dict(describe(make_plan(JobConfig.from_mapping(parallel))))["global batch"].startswith("32: 4 ")
    spot = dict(describe(make_plan(JobConfig.from_mapping({**P4D, "use_spot_instances": True, "max_run": 3600}))))
    assert spot["cost"].startswith("$20.20 an hour")
    assert spot["spot"] == "yes, max_wait 2 h"


@pytest.fixture
def script(tmp_path):
    """A job of a script, which may have any hyperparameters."""
    (tmp_path / "train.py").touch()
    return {**P4D, "recipe": None, "entry_point": str(tmp_path / "train.py")}


def test_secrets_in_hyperparameters_and_variables_are_said(script):
    """Not refused, as scripts ask for them so; but never without a word."""
    token = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH"
    given = {
        "hyperparameters": {"hf_token": token, "epochs": 3, "note": "a word"},
        "environment": {"WANDB_API_KEY": "0f1e2d3c4b5a69788796" * 2},
    }
    said = [text for word, text in describe(Estimator(**script, **given).plan()) if "looks like a secret" in text]
    assert [text.split(" looks")[0] for text in said] == ["the hyperparameter hf_token", "the variable WANDB_API_KEY"]
    assert token not in "".join(said)
    assert not [text for _, text in describe(Estimator(**script).plan()) if "looks like a secret" in text]


def test_secrets_elsewhere_in_the_request_are_said(script):
    """Within lists and dictionaries, and in what else DescribeTrainingJob and ListTags show."""
    token, key = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZaBcDeFgH", "0f1e2d3c4b5a69788796" * 2
    smddp = {"smdistributed": {"dataparallel": {"enabled": True, "custom_mpi_options": f"-x HF_TOKEN={token}"}}}
    given = {
        "hyperparameters": {
            "logger": {"wandb": {"api_key": key}},
            "args": ["--hub_token", token],
            "env": f"WANDB_API_KEY={key}",
            "variables": [{"name": "WANDB_API_KEY", "value": key}],
            "revision": key,
        },
        "tags": {"owner": token, "team": "text"},
        "experiment_config": {"ExperimentName": token},
        "output_path": f"s3://bucket/{token}",
        "distribution": smddp,
    }
    said = exposed(Estimator(**script, **given).plan({"train": f"s3://bucket/{token}/", "test": "s3://bucket/test"}))
    assert [text.split(" looks")[0] for text in said] == [
        "the hyperparameter logger", "the hyperparameter args", "the hyperparameter env",
        "the hyperparameter variables", "the tag owner", "the channel train",
        "the value of experiment_config ExperimentName", "the option custom_mpi_options", "the option output_path",
    ]  # fmt: skip
    assert token not in "".join(said)
