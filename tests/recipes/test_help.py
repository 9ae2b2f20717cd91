# SPDX-License-Identifier: Apache-2.0
"""Help is short and instant; config.yaml explains every key."""

import re
import sys
from importlib import import_module

import pytest
import yaml

from lightning_sagemaker import cli
from lightning_sagemaker.recipe_files import recipe_folder
from lightning_sagemaker.recipe_table import RECIPES
from lightning_sagemaker.recipes._common.cli.help import explained_keys
from lightning_sagemaker.recipes._common.cli.options import HELP_GROUPS
from tests.conftest import run_bounded

STAGE_OPTIONS = {"config", "ckpt_path", "weights_only"}
"""Of the command line alone."""


@pytest.mark.parametrize("name", RECIPES)
def test_config_yaml_explains_every_key(name):
    """Of the model, the data and the run, by the parser itself; of Lightning's Trainer those that have a short name."""
    from lightning_sagemaker.recipes._common.cli.recipe_cli import RecipeCLI

    recipe = import_module(RECIPES[name].module("recipe")).RECIPE
    parsed = RecipeCLI(recipe, ["--strategy", "auto"], run=False)
    keys = set(parsed._parser("fit").get_defaults().keys()) - STAGE_OPTIONS
    trainer = {key for key in keys if key.startswith("trainer.")} - set(recipe.names.short.values())
    explained = explained_keys(recipe_folder(name) / "config.yaml")
    assert set(explained) >= keys - trainer, sorted(keys - trainer - set(explained))
    assert all(entry.text for entry in explained.values())
    assert set(explained) <= keys


@pytest.mark.parametrize("name", RECIPES)
def test_help_is_short_instant_and_free_of_torch(name):
    code = f"import sys; from lightning_sagemaker import cli; cli.main(['run', '{name}', 'fit', '--help']);"
    done = run_bounded([sys.executable, "-c", code + "print('torch' in sys.modules, 'lightning' in sys.modules)"])
    *lines, loaded = done.stdout.splitlines()
    assert loaded == "False False"
    assert len(lines) <= 90  # two screens
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("name", RECIPES)
def test_help_lists_what_the_readme_uses(name, capsys):
    names = import_module(RECIPES[name].module("recipe")).RECIPE.names.short
    assert cli.main(["run", name, "--help"]) == 0
    text = capsys.readouterr().out
    shown = {names.get(option, option) for option in re.findall(r"^  --(\S+)", text, re.MULTILINE)}
    listed = {names.get(option, option) for options in HELP_GROUPS.values() for option in options}
    readme = (recipe_folder(name) / "README.md").read_text()
    assert {names.get(option, option) for option in re.findall(r"--([\w.]+)", readme)} & listed <= shown
    values = yaml.safe_load((recipe_folder(name) / "config.yaml").read_text())
    assert f"[{values['data']['global_batch_size']}]" in text
