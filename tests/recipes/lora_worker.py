# SPDX-License-Identifier: Apache-2.0
"""Recipes with adapters; as a script one of them on two ranks with SMDDP, on its base model."""

import sys
from pathlib import Path

from lightning_sagemaker.recipes._common.cli.recipe_cli import RecipeCLI
from tests.recipes.worker import COMMON, RUNS

RECIPES = ("albert", "questions", "classes")
ADAPTED = ["--model.lora.rank", "2", "--learning_rate", "0.01", "--max_steps", "4", "--val_check_interval", "2"]
# Its first score is the lowest, so the first validation is the best, and the run goes on from it.
ADAPTED += ["--monitor", "scripted_score", "--monitor_mode", "min"]
ADAPTED += ["--trainer.callbacks+=tests.recipes.test_best.Scripted"]
_MORE = {"albert": ["--max_seq_length", "32"], "questions": [], "classes": []}
_DROPOUT = {"albert": [], "questions": ["--dropout", "0"], "classes": []}


def fit(name: str, base: Path, text: Path, what: str, *more: object, strategy: str = "auto") -> None:
    """Train on the base model; without one, make it.

    Args:
        name: Of the recipe.
        base: Folder of all runs.
        text: For ALBERT.
        what: Name of the run.
        more: Options.
        strategy: Lightning's.

    """
    recipe, options = RUNS[name]
    words = [*COMMON, *options, *_MORE[name], *_DROPOUT[name], "--trainer.max_epochs", "-1", "--strategy", strategy]
    words += ["--run_dir", base / what / name, "--cache_dir", base / "cache", "--trainer.limit_test_batches", "0"]
    words += ["--trainer.limit_val_batches", "0"] if what == "base" else []
    words += ["--text", text] if name == "albert" else []
    model = base / "base" / name / "model"
    if model.is_dir() and "--pretrained" not in more:
        words += ["--pretrained", model]
        words += ["--tokenizer", model] if name == "albert" else []
    RecipeCLI(recipe, [str(word) for word in [*words, *more]])


if __name__ == "__main__":
    fit(sys.argv[3], Path(sys.argv[1]), Path(sys.argv[2]), "two", *ADAPTED, strategy="smddp")
