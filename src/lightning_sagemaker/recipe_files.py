# SPDX-License-Identifier: Apache-2.0
"""The recipes that come with this package: list them, or copy one to start from."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from lightning_sagemaker.errors import CommandError
from lightning_sagemaker.recipe_table import RECIPES

_NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.pyc")


def recipe_folder(name: str) -> Path:
    """Where the files of a recipe are.

    Args:
        name: As in ``lightning-sagemaker run NAME``.

    """
    spec = find_spec(RECIPES[name].package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def list_recipes() -> int:
    """Print each recipe, its configurations and its folder."""
    for name, spec in RECIPES.items():
        folder = recipe_folder(name)
        configurations = ", ".join(sorted(path.name for path in folder.glob("*.yaml")))
        print(f"{name:<24}{spec.description}\n{'':<24}{configurations}\n{'':<24}{folder}")
    return 0


def copy_recipe(name: str, target: Path) -> int:
    """Copy a recipe's files; return the exit code.

    Raises:
        CommandError: If there is no such recipe, or the folder is not empty.

    """
    if name not in RECIPES:
        raise CommandError(f"unknown recipe {name!r}. HINT: choose one of {', '.join(RECIPES)}.")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CommandError(f"{target} already exists. HINT: give a new folder, or an empty one.")
    try:
        shutil.copytree(recipe_folder(name), target, ignore=_NOT_COPIED, dirs_exist_ok=True)
    except OSError:
        shutil.rmtree(target, ignore_errors=True)  # a part of a recipe would have to be deleted before the next try
        raise
    print(f"{target}: change it, then run `python {target / 'train.py'} fit --config tiny.yaml`")
    return 0
