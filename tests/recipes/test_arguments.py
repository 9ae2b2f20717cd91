# SPDX-License-Identifier: Apache-2.0
import os
from importlib import import_module
from pathlib import Path

import pytest

from lightning_sagemaker.recipes._common.cli.arguments import (
    ArgumentNameError,
    EmptyOptionError,
    Names,
    RepeatedOptionError,
    normalize,
)

NAMES = Names(
    {"max_steps": "trainer.max_steps", "text": "data.text", "lowercase": "data.lowercase"}, frozenset({"run_dir"})
)


@pytest.fixture
def folder(tmp_path):
    for name in ("config.yaml", "tiny.yaml"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def normalized(folder, *arguments):
    return normalize(arguments, NAMES, folder)


def test_sagemaker_command_line(folder):
    arguments = ["--max_steps", "100", "--lowercase", "False", "--mp_parameters", "microbatches=2,partitions=2"]
    expected = ["fit", f"--config={folder / 'config.yaml'}", "--trainer.max_steps=100", "--data.lowercase=false"]
    assert normalized(folder, *arguments) == expected


@pytest.mark.parametrize("word", ["True", "true", '"true"', '"True"'])
def test_words_for_booleans(folder, word):
    assert normalized(folder, "--lowercase", word)[-1] == "--data.lowercase=true"


@pytest.mark.parametrize(
    ("value", "expected"), [('"a b"', "a b"), ("-1", "-1"), ("a=b", "a=b"), ('"', '"'), ("None", "null")]
)
def test_values(folder, value, expected):
    assert normalized(folder, "--text", value)[-1] == f"--data.text={expected}"


def test_equals_sign_bare_flag_and_dotted_names(folder):
    arguments = normalized(folder, "--max_steps=5", "--data.seed", "3", "--run_dir", "x", "--lowercase")
    assert arguments[2:] == ["--run_dir=x", "--trainer.max_steps=5", "--data.seed=3", "--data.lowercase=true"]


def test_a_config_does_not_undo_an_option_wherever_it_stands(folder):
    expected = ["fit", f"--config={folder / 'tiny.yaml'}", f"--config={folder / 'config.yaml'}", "--data.text=a"]
    words = [["--text", "a"], ["--config", "tiny.yaml"], ["-c", "config"]]
    for order in ((0, 1, 2), (1, 0, 2), (1, 2, 0)):
        assert normalized(folder, *(word for place in order for word in words[place])) == expected


def test_an_option_with_two_values_is_refused(folder):
    with pytest.raises(RepeatedOptionError, match=r"--max_steps 5 and --trainer.max_steps 6 were set.*HINT"):
        normalized(folder, "--max_steps", "5", "--trainer.max_steps", "6")
    with pytest.raises(RepeatedOptionError, match="data.lowercase"):
        normalized(folder, "--lowercase", "False", "--lowercase")
    assert normalized(folder, "--max_steps", "5", "--trainer.max_steps=5.0")[-1] == "--trainer.max_steps=5.0"


def test_an_option_of_an_option_follows_it_and_lists_may_grow(folder):
    about = ["--trainer.logger.name=x", "--trainer.logger=Y", "--data.label_map.a=b", "--data.label_map={}"]
    found = normalized(folder, *about)
    assert found.index("--trainer.logger=Y") < found.index("--trainer.logger.name=x")
    assert found.index("--data.label_map={}") < found.index("--data.label_map.a=b")
    grows = [f"--trainer.callbacks{rest}" for rest in ("+=A", ".every=1", "+=B", ".every=2")]
    assert normalized(folder, *grows)[2:] == grows


@pytest.mark.parametrize("name", ["tiny", "tiny.yaml"])
def test_config_by_bare_name(folder, name):
    assert normalized(folder, "--config", name) == ["fit", f"--config={folder / 'tiny.yaml'}"]
    assert normalized(folder, "-c", name) == ["fit", f"--config={folder / 'tiny.yaml'}"]


def test_a_config_in_the_working_directory_goes_first(folder, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "tiny.yaml").write_text("{}")
    monkeypatch.chdir(elsewhere)
    assert normalized(folder, "--config", "tiny.yaml") == ["fit", "--config=tiny.yaml"]


def test_subcommand_is_kept(folder):
    assert normalized(folder, "validate", "--ckpt_path", "last")[0] == "validate"
    assert normalized(folder, "--help") == ["--help"]
    assert normalized(folder) == ["fit", f"--config={folder / 'config.yaml'}"]


def test_unknown_name_names_the_nearest(folder):
    with pytest.raises(ArgumentNameError, match=r"--max_step was set.*nearest name is --max_steps"):
        normalized(folder, "--max_step", "3")


def test_short_names_lead_to_options_that_exist():
    from lightning_sagemaker.recipes._common.cli.recipe_cli import RecipeCLI
    from lightning_sagemaker.recipes.albert_mlm.recipe import RECIPE, SHORT_NAMES

    config = RecipeCLI(RECIPE, ["--strategy", "auto"], run=False).config["fit"]
    missing = [name for name in SHORT_NAMES.values() if name not in config]
    assert not missing


@pytest.mark.parametrize("recipe", ["albert_mlm", "bert_qa", "sequence_classification"])
def test_torchrun_leaves_some_name_of_each_option_alone(recipe):
    """torchrun refuses a script's ``--NAME`` with which two options of its own begin, and takes it if one does."""
    from torch.distributed.run import get_args_parser

    own = [word for action in get_args_parser()._actions for word in action.option_strings]
    names = import_module(f"lightning_sagemaker.recipes.{recipe}.recipe").RECIPE.names
    by_key: dict[str, set[str]] = {name: {name} for name in names.own}
    for name, key in names.short.items():
        by_key.setdefault(key, set()).add(name)
    taken = {name for some in by_key.values() for name in some if any(word.startswith(f"--{name}") for word in own)}
    assert taken == {"monitor"}  # --metric_for_best_model
    assert not [key for key, some in by_key.items() if some <= taken]


def test_every_yaml_parses():
    from lightning_sagemaker.recipes._common.cli.recipe_cli import RecipeCLI
    from lightning_sagemaker.recipes.albert_mlm.recipe import RECIPE

    files = sorted(Path(RECIPE.folder).glob("*.yaml"))
    assert {path.name for path in files} >= {"config.yaml", "tiny.yaml"}
    for path in files:
        cli = RecipeCLI(RECIPE, ["--config", str(path), "--strategy", "auto"], run=False)
        assert cli.trainer.max_steps > 0
        assert cli.model.hparams["size"] in ("tiny", "base", "large")


def test_a_password_of_mlflow_is_in_no_configuration(tmp_path, monkeypatch):
    from lightning_sagemaker import MLflowLogger
    from lightning_sagemaker.loggers import address
    from lightning_sagemaker.recipes._common.cli.recipe_cli import RecipeCLI
    from lightning_sagemaker.recipes.albert_mlm.recipe import RECIPE

    monkeypatch.setattr(address, "_needs", lambda *_: None)
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "")  # so that what is set is taken back
    options = ["--strategy", "auto", "--run_dir", str(tmp_path), "--mlflow", "https://me:geheim@mlflow.example.com"]
    cli = RecipeCLI(RECIPE, options, run=False)
    assert "geheim" not in str(cli.config)
    assert cli.config["fit"]["mlflow"] == "https://mlflow.example.com"
    (logger,) = [one for one in cli.trainer.loggers if isinstance(one, MLflowLogger)]
    assert (logger.name, logger.save_dir) == ("albert-mlm", str(tmp_path / "output" / "mlflow"))
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == "geheim"


@pytest.mark.parametrize("words", [["--run_dir", ""], ["--run_dir="], ["--text", '""'], ["--config", ""]])
def test_an_option_without_a_text(folder, words):
    """Of a variable of a shell that is not set: the run would be written to the current folder, or its data built in."""
    with pytest.raises(EmptyOptionError, match=rf"^{words[0].rstrip('=')} was set to an empty text\. HINT: "):
        normalized(folder, *words)
