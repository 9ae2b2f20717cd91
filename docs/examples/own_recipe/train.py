# SPDX-License-Identifier: Apache-2.0
"""Train the recipe in this folder, which has the command line, resuming and outputs of those that come with the package.

On a laptop::

    python docs/examples/own_recipe/train.py fit --max_steps 60 --gamma 2

Rehearsed on two simulated hosts::

    lightning-sagemaker local --hosts 2 --distribution smddp --source-dir docs/examples/own_recipe -- python train.py --max_steps 60

On SageMaker::

    lightning-sagemaker launch train.py --source-dir docs/examples/own_recipe --instance-type ml.g5.xlarge
"""  # noqa: E501

from __future__ import annotations

from recipe import RECIPE  # next to this file

from lightning_sagemaker.recipes._common.cli.recipe_cli import RecipeCLI

if __name__ == "__main__":
    RecipeCLI(RECIPE)
