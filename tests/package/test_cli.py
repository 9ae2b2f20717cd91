# SPDX-License-Identifier: Apache-2.0
"""A user's mistake is one sentence, whichever command meets it."""

import importlib
import shlex
import socket
import subprocess

import pytest

from lightning_sagemaker import cli


@pytest.mark.parametrize("command", ["supervise", "doctor", "cp", "prepare", "template", "metrics", "local", "image"])
def test_a_mistake_is_one_sentence(command, tmp_path, monkeypatch, capsys):
    (tmp_path / "x.py").touch()
    monkeypatch.setenv("SM_HOSTS", "[")
    monkeypatch.setenv("SM_CURRENT_HOST", "algo-1")
    monkeypatch.setenv("TRAINING_JOB_NAME", "job")
    monkeypatch.setenv("SM_FRAMEWORK_PARAMS", "{}")
    words = {
        "supervise": [str(tmp_path / "x.py")],
        "doctor": ["--output", "picture.svg"],
        "cp": ["absent", str(tmp_path / "copy")],
        "prepare": ["absent"],
        "template": ["absent"],
        "metrics": ["absent"],
        "local": ["--env", "A", "--", "true"],
        "image": [str(tmp_path / "image"), "--pytorch-version", "0.1"],
    }[command]
    assert cli.main([command, *words]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"lightning-sagemaker {command}: error: ")
    assert "HINT: " in printed
    assert printed.count("\n") == 1


def test_an_address_without_a_bucket_is_one_sentence(capsys):
    assert cli.main(["prepare", "--verify", "s3://"]) == 2
    said = "lightning-sagemaker prepare: error: 's3:' is not an S3 address. HINT: "
    assert capsys.readouterr().err.startswith(said)


def test_a_recipe_shows_its_errors_itself(capsys):
    assert cli.main(["run", "absent"]) == 2
    assert capsys.readouterr().err.startswith("lightning-sagemaker run: error: unknown recipe 'absent'. HINT: ")


@pytest.mark.parametrize(
    "words",
    [
        ["cp", "albert-mlm", "file/copy"],
        ["image", "file", "--region", "us-east-1"],
        ["demo", "--root", "file"],
        ["doctor", "--goodput", "file/x"],
    ],
)
def test_a_place_that_cannot_be_used_is_one_sentence(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert cli.main(words) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"lightning-sagemaker {words[0]}: error: ")
    assert "file" in printed
    assert "HINT: " in printed
    assert printed.count("\n") == 1


def test_a_program_that_is_not_installed_is_called_one(monkeypatch, capsys):
    monkeypatch.setattr(
        importlib.import_module(cli.COMMANDS["ls"]), "main", lambda _: subprocess.call(["no-such-program"])
    )
    assert cli.main(["ls"]) == 2
    said = "the program 'no-such-program' cannot be started: No such file or directory. HINT: install it"
    assert capsys.readouterr().err.startswith(f"lightning-sagemaker ls: error: {said}")


def test_an_unknown_option_is_shown_with_the_usage_of_its_command(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["template", "role", "--absent"])
    printed = capsys.readouterr().err
    assert printed.startswith("usage: lightning-sagemaker template ")
    assert "lightning-sagemaker template: error: unrecognized arguments: --absent" in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["image", "--account", "12345"], "12 digits"),
        (["image", "--account", ""], "12 digits"),
        (["image", "--name", "Bad Name"], "lowercase"),
        (["image", "--name", "a--b/c__d/"], "lowercase"),
        (["doctor", "--json", "--preflight"], "--preflight and --json were set"),
        (["doctor", "--preflight", "--goodput", "x"], "--goodput and --preflight were set"),
        (
            ["launch", "albert-mlm", "--yes", "--rehearse-set", "max_steps=3"],
            "--rehearse-set was set without --rehearse",
        ),
        (["launch", "albert-mlm", "--rehearse-hosts", "1"], "--rehearse-hosts was set without --rehearse"),
        (["launch", "albert-mlm", "--inference-image", "x"], "--inference-image was set without --register"),
        (["supervise", "--coordinator", "h:99999", "--hosts", "2", __file__], "ports go from 1 to 65535"),
        (["supervise", "--coordinator", ":29400", "--hosts", "2", __file__], ":29400 has no host"),
        (["supervise", "--coordinator", "[::1]:29400", "--hosts", "2", __file__], "has no IPv4 address"),
        (["supervise", "."], ". is not a file"),
        (["bench", "throughput", "albert-mlm", "--ranks", "²x1"], "--ranks '²x1' was given"),
        (["local", "--instance-type", "ml.p4d.24xlarg", "--", "true"], "did you mean 'ml.p4d.24xlarge'"),
        (["plan", "bert-large", "--region", "mars"], "region='mars' was set"),
        (["plan", "bert-large", "--region", "eu-west-11"], "did you mean 'eu-west-1'"),
    ],
)
def test_values_that_would_have_no_effect_or_the_wrong_one(words, said, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SM_NUM_GPUS", "0")
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert "HINT: " in printed
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_one_sentence(capsys):
    with socket.create_server(("", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        assert cli.main(["supervise", "--coordinator", place, "--hosts", "2", __file__]) == 2
    printed = capsys.readouterr().err
    assert f"The coordinator cannot listen at {place}: Address already in use" in printed
    assert "HINT: " in printed


def test_the_commands_for_an_image_can_be_pasted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["image", "my image", "--region", "us-east-1", "--name", "team/a--b__c.d"]) == 0
    build = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("docker build "))
    assert shlex.split(build)[-1] == "my image"
    assert shlex.split(build)[-2].endswith("/team/a--b__c.d:" + build.split()[3].rpartition(":")[2])


@pytest.mark.parametrize("command", ["ls", "run"])
def test_control_c_is_no_traceback(command, monkeypatch, capsys):
    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module(cli.COMMANDS[command]), "main", stop)
    assert cli.main([command]) == 130
    assert capsys.readouterr().err == f"lightning-sagemaker {command}: stopped\n"
