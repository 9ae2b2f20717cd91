# SPDX-License-Identifier: Apache-2.0
"""The names of a recipe's hyperparameters, which its program would refuse in the container only."""

from __future__ import annotations

from importlib import import_module

from lightning_sagemaker.errors import LaunchError
from lightning_sagemaker.launch.spec.config import JobConfig
from lightning_sagemaker.recipe_table import RECIPES

_READ_ELSEWHERE = ("mp_parameters", "c")
"""Hyperparameters that the recipes' command line accepts, and that are none of their options."""


def check_recipe_options(config: JobConfig) -> None:
    """Check the names of a recipe's hyperparameters, apart from dotted ones, whose check would import torch.

    Raises:
        LaunchError: If the recipe has no such option; the message has the nearest name.

    """
    if config.recipe not in RECIPES or not config.hyperparameters:
        return
    names = import_module(RECIPES[config.recipe].module("recipe")).RECIPE.names
    for name in config.hyperparameters:
        if name not in _READ_ELSEWHERE:
            try:
                names.resolve(name)
            except ValueError as error:
                raise LaunchError(f"hyperparameters: {error}") from error
