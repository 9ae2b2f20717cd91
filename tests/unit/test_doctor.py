# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from lightning_sagemaker import cli


def doctor(capsys, *arguments) -> tuple[int, str]:
    code = cli.main(["doctor", *arguments])
    return code, capsys.readouterr().out


def test_on_a_laptop(capsys):
    code, text = doctor(capsys)
    assert code == 0
    assert 'strategy="sagemaker" is ' in text
    assert "the open shim of this package" in text
    assert "Nothing looks wrong." in text


def test_in_a_job_as_json(capsys, monkeypatch, tmp_path):
    for name, value in {
        "SAGEMAKER_BASE_DIR": str(tmp_path),
        "TRAINING_JOB_NAME": "job-1",
        "SM_HOSTS": '["algo-1", "algo-2"]',
        "SM_CURRENT_HOST": "algo-1",
        "SM_NETWORK_INTERFACE_NAME": "ethwe",
        "SM_HPS": '{"epochs": 3}',
        "SM_FRAMEWORK_PARAMS": '{"sagemaker_distributed_dataparallel_enabled": true}',
        "LIGHTNING_SAGEMAKER_SIMULATED": "1",
        "MASTER_ADDR": "name.invalid",
    }.items():
        monkeypatch.setenv(name, value)
    code, text = doctor(capsys, "--json")
    report = json.loads(text)
    assert code == 0
    assert report["job"]["hosts"] == {"value": ["algo-1", "algo-2"], "source": "SM_HOSTS"}
    assert report["job"]["hyperparameters"] == {"value": {"epochs": 3}, "source": "SM_HPS"}
    assert report["job"]["distribution"]["value"] == "smddp"
    assert report["selection"]['strategy="sagemaker"']["name"] == "smddp"
    assert report["versions"]["torch"]
    assert report["devices"]
    problems = "\n".join(report["problems"])
    assert "no launcher started this process" in problems
    assert "interface 'ethwe' does not exist" in problems
    assert "'name.invalid' has no address" in problems
    _, text = doctor(capsys)
    assert "What looks wrong" in text
    assert '["algo-1", "algo-2"]  (SM_HOSTS)' in text


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_job_that_cannot_be_read(capsys, monkeypatch, arguments):
    monkeypatch.setenv("LOCAL_RANK", "0")
    code, text = doctor(capsys, *arguments)
    assert code == 1
    assert "LOCAL_RANK=0 is set, but no launcher" in text
    assert "torch" in text  # versions all the same


def test_secrets_are_not_shown(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path))
    monkeypatch.setenv("TRAINING_JOB_NAME", "job-1")
    monkeypatch.setenv(
        "SM_HPS", '{"epochs": 3, "wandb_api_key": "hunter2hunter2", "nested": {"db_password": "hunter2"}}'
    )
    monkeypatch.setenv("HF_TOKEN", "hunter2hunter2")
    for arguments in ((), ("--json",)):
        _, text = doctor(capsys, *arguments)
        assert "epochs" in text
        assert "wandb_api_key" in text
        assert "hunter2" not in text
