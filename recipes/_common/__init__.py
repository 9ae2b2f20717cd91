# SPDX-License-Identifier: Apache-2.0
"""What the recipes share: the command line, the folders of a run, and what is left behind at its end."""

from lightning_sagemaker.recipes._common.arguments import ArgumentNameError, Names, normalise
from lightning_sagemaker.recipes._common.cli import Recipe, RecipeCLI
from lightning_sagemaker.recipes._common.folders import RunFolders

__all__ = ["ArgumentNameError", "Names", "Recipe", "RecipeCLI", "RunFolders", "normalise"]
