# SPDX-License-Identifier: Apache-2.0
"""Whatever is written on the command line or into a job's file: it is taken, or refused in one sentence."""

import os
from dataclasses import fields

import pytest

from lightning_sagemaker import cli
from lightning_sagemaker.launch.planning import plan
from lightning_sagemaker.launch.source import bundle
from lightning_sagemaker.launch.spec.config import JobConfig

VALUES = (
    "3", "-1", "1e999", ".nan", "x", "''", "null", "true", "[]", "[1]", "[[x]]", "{}", "{a: b}", "{a: {b: 1}}", "{1: 2}",
    "{s3_data: 3}", "{s3_data: s3://bucket/x, compression: [1]}", "{file_system_id: fs-01234567}", "[{Key: a}]", "s3://b",
    "2026-01-01", "!!python/name:os.system", "\N{SNOWMAN}", "a\0b", "x" * 3000,
)  # fmt: skip
CALL = ("launch", "albert-mlm", "--region", "us-east-1", "--dry-run")


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """The same bundle for all calls, whose source is checked, and the same parser: they take most of the time."""
    packed = bundle.make_bundle(JobConfig(recipe="albert-mlm"), include_plugin=False)

    def make_bundle(config, *_):
        source, entry = bundle._source(config, tmp_path)
        bundle._select(config, source, entry, tmp_path)
        return packed

    monkeypatch.setattr(plan, "make_bundle", make_bundle)
    parser = cli.build_parser()
    monkeypatch.setattr(cli, "build_parser", lambda: parser)
    monkeypatch.chdir(tmp_path)  # a channel may be any folder, this one too; the project's takes long to look through


def outcome(capsys, *arguments):
    """Exit code and what was said; argparse's own refusals end with 2 as well."""
    try:
        code = cli.main(list(arguments))
    except SystemExit as error:
        code = error.code
    return code, capsys.readouterr().err


def is_good(code, said):
    sentence = said.count("error: ") == 1 and said.count("HINT: ") == 1 and said.count("\n") == 1
    return code == 0 or (code == 2 and (sentence or said.startswith("usage: ")))


def wrong(capsys, calls):
    """Calls that raise, or end with something else than one sentence."""
    found = []
    for call in calls:
        try:
            code, said = outcome(capsys, *call)
        except Exception as error:
            found.append((call[-1], f"{type(error).__name__}: {error}"))
        else:
            if not is_good(code, said):
                found.append((call[-1], code, said[-500:]))
    return found


def test_any_value_of_any_key(quick, capsys):
    names = [one.name for one in fields(JobConfig)]
    calls = [(*CALL, "--set", f"{name}={value}") for name in names for value in VALUES]
    calls += [(*CALL, "--set", f"{name}.x={value}") for name in names for value in VALUES[:12]]
    assert wrong(capsys, calls) == []


def test_any_value_in_a_file_with_options_over_it(quick, capsys, tmp_path):
    calls = []
    for number, (name, value) in enumerate((one.name, value) for one in fields(JobConfig) for value in VALUES):
        path = tmp_path / f"{number}.yaml"
        path.write_text(f"{name}: {value}\n".replace("\0", ""))
        more = ("--channel", "train=s3://bucket/x") if number % 2 else ("--set", "hyperparameters.a=1", "--spot")
        calls.append((*CALL, *more, "--config", str(path)))
    assert wrong(capsys, calls) == []


REFUSED = {
    "--save into no folder": (["--save", "nowhere/job.yaml"], "'nowhere/job.yaml' cannot be written: No such file"),
    "--save over a folder": (["--save", "."], "cannot be written"),
    "a number as keys and values": (["--set", "hyperparameters=3"], "hyperparameters=3 was set"),
    "a key of a number": (["--set", "max_run=3", "--set", "max_run.x=1"], "max_run is 3"),
    "a key of a text": (["--set", "recipe.x=1"], "recipe"),
    "a channel twice": (
        ["--channel", "train=s3://bucket/a", "--channel", "train=s3://bucket/b"],
        "names 'train' twice",
    ),
    "a key twice": (["--set", "max_run=3", "--set", "max_run=4"], "names 'max_run' twice"),
    "smp without parameters": (["--distribution", "smp"], 'distribution="smp" was set without parameters'),
    "a password in an address": (
        ["--set", "hyperparameters.mlflow=https://me:word@host"],
        "a URL with a password",
    ),
    "nothing near": (["--set", "color=red"], "none of the "),
    "something near": (["--set", "max_runn=3"], "did you mean 'max_run'?"),
    "a repository that is no text": (
        ["--set", "recipe=", "--set", "entry_point=a.py", "--set", "git_config={repo: 3}"],
        "git_config has repo=3",
    ),
    "a rule that is none": (
        ["--set", "debugger_rules=[3]"],
        "debugger_rules=[3] was set. HINT: it must be a list of keys",
    ),
    "no cost at all": (["--max-cost", "0"], "max_cost=0.0 was set. HINT: it must be more than 0 US dollars"),
    "a cost that is none": (["--max-cost", "nan"], "max_cost=nan was set"),
    "a file that is none": (["--config", "none.yaml"], "none.yaml cannot be read"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, wanted = REFUSED[name]
    code, said = outcome(capsys, *CALL, *arguments)
    assert (code, is_good(code, said)) == (2, True), said
    assert wanted in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--rehearse-hosts", "0"], "0 hosts were requested"),
        (["--rehearse-root", os.devnull], "'/dev/null' is not a directory"),
        (["--rehearse-channel", "x=."], "The job has no channel 'x'"),
        (
            ["--channel", "x=s3://bucket/x", "--rehearse-channel", "x=nowhere"],
            "was given 'nowhere', which is not a directory",
        ),
    ],
)
def test_a_rehearsal_that_cannot_be_leaves_nothing(arguments, wanted, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, said = outcome(capsys, *CALL, "--rehearse", *arguments)
    last = said.splitlines()[-1]
    assert (code, last.count("HINT: ")) == (2, 1), said
    assert wanted in last
    assert list(tmp_path.iterdir()) == []


def test_a_text_as_inputs_is_the_channel_training(quick, capsys, tmp_path):
    (tmp_path / "job.yaml").write_text("inputs: s3://bucket/text\n")
    code, said = outcome(capsys, *CALL, "--config", str(tmp_path / "job.yaml"), "--channel", "test=s3://bucket/test")
    assert code == 0
    assert "training: s3://bucket/text" in said
    assert "test: s3://bucket/test" in said
    (tmp_path / "job.yaml").write_text("inputs:\n  train: s3://bucket/a\n  train: s3://bucket/b\n")
    code, said = outcome(capsys, *CALL, "--config", str(tmp_path / "job.yaml"))
    assert (code, is_good(code, said)) == (2, True), said
    assert "duplicate key 'train'" in said
