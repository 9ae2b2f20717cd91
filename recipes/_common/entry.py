# SPDX-License-Identifier: Apache-2.0
"""What every recipe's ``train.py`` does: it is a module of the package and a script that SageMaker calls."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from lightning_sagemaker.recipes._common.arguments import ArgumentNameError
from lightning_sagemaker.recipes._common.cli import Recipe, RecipeCLI


def run_recipe(package: str, arguments: Sequence[str] | None = None) -> None:
    """Run one stage of the recipe in ``package``; ``arguments`` are ``sys.argv[1:]`` by default."""
    recipe: Recipe = import_module(f"{package}.recipe").RECIPE
    try:
        RecipeCLI(recipe, arguments)
    except ArgumentNameError as error:
        sys.exit(f"error: {error}")


def use_folder(package: str, script: str) -> None:
    """Make the files beside ``script`` the package, so that a copy of the recipe trains what it says."""
    folder = Path(script).resolve().parent
    spec = importlib.util.spec_from_file_location(
        package, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)
