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


def test_an_unknown_option_is_shown_with_the_usage_of_its_command(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["template", "role", "--absent"])
    printed = capsys.readouterr().err
    assert printed.startswith("usage: lightning-sagemaker template ")
    assert "lightning-sagemaker template: error: unrecognized arguments: --absent" in printed
