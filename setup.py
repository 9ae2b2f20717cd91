# SPDX-License-Identifier: Apache-2.0
"""The packages, which two source trees make up (src/ and recipes/), and the page for PyPI; all else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
# Pictures, and links to files: PyPI has none of them.
readme = re.sub(r"^!\[.*\]\(.*\)\n\n", "", readme, flags=re.MULTILINE)
readme = re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", readme)

recipes = "lightning_sagemaker.recipes"
setup(
    packages=[*find_packages("src"), recipes, *(f"{recipes}.{name}" for name in find_packages("recipes"))],
    long_description=readme,
    long_description_content_type="text/markdown",
)
