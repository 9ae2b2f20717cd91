# SPDX-License-Identifier: Apache-2.0
"""The list of packages, which two source trees make up: src/ and recipes/. All else is in pyproject.toml."""

from setuptools import find_packages, setup

recipes = "lightning_sagemaker.recipes"
setup(packages=[*find_packages("src"), recipes, *(f"{recipes}.{name}" for name in find_packages("recipes"))])
