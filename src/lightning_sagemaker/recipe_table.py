# SPDX-License-Identifier: Apache-2.0
"""The recipes: everything that the commands and the launcher know of one is its row here. Imports nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RecipeSpec:
    """One recipe, as ``lightning-sagemaker run NAME`` and a launched job have it.

    Args:
        package: Its package, with ``train.main(arguments)`` and ``recipe.RECIPE``.
        description: For lists.
        metrics: What it prints after a validation, as ``val_NAME``, and after a test, as ``test_NAME``.
        prepares: What ``lightning-sagemaker prepare`` makes of its data, for lists; None where runs prepare it themselves.
        preparer: The module in the package with ``main(arguments) -> exit code`` that does so.

    """

    package: str
    description: str
    metrics: tuple[str, ...]
    prepares: str | None = None
    preparer: str = "prepare_text"

    def module(self, name: str) -> str:
        """The path of a module in the recipe's package."""
        return f"{self.package}.{name}"


RECIPES = {
    "albert-mlm": RecipeSpec(
        "lightning_sagemaker.recipes.albert_mlm",
        "ALBERT masked-language-model pretraining",
        ("loss", "accuracy", "perplexity"),
        prepares="text to tokenized, sentence-segmented shards",
    ),
    "bert-qa": RecipeSpec(
        "lightning_sagemaker.recipes.bert_qa",
        "extractive question answering",
        ("loss", "exact", "f1", "best_exact", "best_f1"),
    ),
    "sequence-classification": RecipeSpec(
        "lightning_sagemaker.recipes.sequence_classification",
        "classification and regression of texts",
        ("loss", "accuracy", "f1", "f1_macro", "matthews_correlation", "pearson", "spearman"),
    ),
}
"""By name."""
