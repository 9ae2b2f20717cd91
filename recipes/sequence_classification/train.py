# SPDX-License-Identifier: Apache-2.0
"""Train, validate, test or predict with a classifier of texts.

``python train.py --max_steps 100`` is what SageMaker calls; ``lightning-sagemaker run`` comes here too. Arguments: see
README.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_sagemaker.recipes._common.cli.entry import run_recipe, use_folder

PACKAGE = "lightning_sagemaker.recipes.sequence_classification"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one stage; ``arguments`` are ``sys.argv[1:]`` by default."""
    run_recipe(PACKAGE, arguments)


if __name__ == "__main__":
    use_folder(PACKAGE, __file__)
    main()
