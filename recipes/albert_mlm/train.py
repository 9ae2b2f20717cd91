# SPDX-License-Identifier: Apache-2.0
"""Train, validate, test or predict with ALBERT.

``python train.py --max_steps 100`` is what SageMaker calls; ``lightning-sagemaker run albert-mlm fit`` comes here too.
Arguments: see README.md.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

PACKAGE = "lightning_sagemaker.recipes.albert_mlm"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one stage; ``arguments`` are ``sys.argv[1:]`` by default."""
    import lightning_sagemaker  # noqa: F401 - registers the strategies
    from lightning_sagemaker.recipes._common import ArgumentNameError, RecipeCLI
    from lightning_sagemaker.recipes.albert_mlm.recipe import RECIPE

    try:
        RecipeCLI(RECIPE, arguments)
    except ArgumentNameError as error:
        sys.exit(f"error: {error}")


def _use_this_folder() -> None:
    """Make the files beside this script the package, so that a copy of the recipe trains what it says."""
    folder = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location(
        PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    _use_this_folder()
    main()
