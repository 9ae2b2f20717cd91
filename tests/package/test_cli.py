# SPDX-License-Identifier: Apache-2.0
"""A user's mistake is one sentence, whichever command meets it."""

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


def test_a_recipe_shows_its_errors_itself(capsys):
    assert cli.main(["run", "absent"]) == 2
    assert capsys.readouterr().err.startswith("lightning-sagemaker run: error: unknown recipe 'absent'. HINT: ")
