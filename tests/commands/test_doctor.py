# SPDX-License-Identifier: Apache-2.0
import json

import psutil
import pytest

from lightning_sagemaker import cli, trial


def doctor(capsys, *arguments) -> tuple[int, str]:
    code = cli.main(["doctor", *arguments])
    return code, capsys.readouterr().out


def test_on_a_laptop(capsys, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "localhost")
    code, text = doctor(capsys, "--quick")
    assert code == 0
    assert 'strategy="sagemaker" is ' in text
    assert "the open shim of this package" in text
    assert "Nothing looks wrong." in text


@pytest.mark.parametrize(
    ("variables", "reduces", "gathers", "others"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "smddp", "gloo", "refused"),
        ({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, "gloo", "smddp", "allowed"),
    ],
)
def test_smddps_engines_by_launcher(capsys, monkeypatch, variables, reduces, gathers, others):
    zero = ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    for name, value in {**variables, **dict.fromkeys(zero, "0"), "MASTER_ADDR": "::1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    smddp = json.loads(doctor(capsys, "--quick", "--json")[1])["smddp"]
    assert (smddp["all_reduce"]["name"], smddp["all_gather"]["name"]) == (reduces, gathers)
    assert smddp["all_gather"]["source"].startswith("https://docs.aws.amazon.com/")
    lines = [" ".join(line.split()) for line in doctor(capsys, "--quick")[1].splitlines()]
    for words in (f"AllReduce {reduces} SMDDP", f"AllGather {gathers} SMDDP", f"other collectives {others} SMDDP"):
        assert any(line.startswith(words) for line in lines), lines


def test_a_malformed_variable_of_smddp(capsys, monkeypatch):
    monkeypatch.setenv("SMDDP_AG_SORT_BUFFER_SIZE_BYTES", "128MB")
    code, text = doctor(capsys, "--quick")
    assert code == 1
    assert "SMDDP_AG_SORT_BUFFER_SIZE_BYTES='128MB' is set, and SMDDP takes multiples of 8192" in text


def test_a_name_of_ones_own_without_address(capsys, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "nowhere.invalid")
    _, text = doctor(capsys, "--quick")
    assert "host name 'nowhere.invalid' does not resolve, so torchrun --standalone would hang" in text


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
    code, text = doctor(capsys, "--quick", "--json")
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
    assert "'name.invalid' does not resolve" in problems
    _, text = doctor(capsys, "--quick")
    assert "What looks wrong" in text
    assert '["algo-1", "algo-2"]  (SM_HOSTS)' in text


@pytest.mark.parametrize("arguments", [("--quick",), ("--quick", "--json")])
def test_a_job_that_cannot_be_read(capsys, monkeypatch, arguments):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("TRAINING_JOB_NAME", "job-1")
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
    for arguments in (("--quick",), ("--quick", "--json")):
        _, text = doctor(capsys, *arguments)
        assert "epochs" in text
        assert "wandb_api_key" in text
        assert "hunter2" not in text


def test_what_every_run_needs_is_tried(capsys, monkeypatch):
    before = set(psutil.Process().children(recursive=True))
    monkeypatch.delitem(trial.KINDS, "environments")  # importing Lightning takes seconds; see tests/machines
    code, text = doctor(capsys)
    assert code == 0, text
    assert text.count("  works") == 2
    assert "two processes reduce a tensor" in text
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.parametrize("failure", ["hangs", "crashes", "says"])
def test_what_does_not_work_is_said_and_leaves_nothing(capsys, monkeypatch, failure):
    before = set(psutil.Process().children(recursive=True))
    program = {
        "hangs": "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)']);"
        "time.sleep(99)",
        "crashes": "import os; print('next: Third', flush=True); print('the last words', flush=True); os.abort()",
        "says": "print('problem: it is broken. HINT: mend it.')",
    }[failure]
    monkeypatch.setattr(trial, "_command", lambda name: [trial.sys.executable, "-c", program])
    monkeypatch.setattr(trial, "KINDS", {"processes": trial.KINDS["processes"]})
    monkeypatch.setattr(trial, "TIME_LIMIT", 1.0 if failure == "hangs" else 30.0)
    code, text = doctor(capsys, "--json")
    (problem,) = json.loads(text)["problems"]  # the same of both processes
    assert code == 1
    assert "HINT: " in problem
    expected = {"hangs": "timed out after 1 seconds", "crashes": "ended in Third with exit code -6 (the last words)"}
    assert expected.get(failure, "it is broken") in problem
    assert set(psutil.Process().children(recursive=True)) <= before
