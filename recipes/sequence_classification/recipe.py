# SPDX-License-Identifier: Apache-2.0
"""Puts the parts together for the command line."""

from __future__ import annotations

from pathlib import Path

from lightning_sagemaker.recipes._common.cli.arguments import Names
from lightning_sagemaker.recipes._common.cli.options import FINE_TUNING_SHORT_NAMES, OWN_OPTIONS
from lightning_sagemaker.recipes._common.cli.recipe import Recipe

SHORT_NAMES = FINE_TUNING_SHORT_NAMES | {
    "label_column": "data.label_column",
    "label_column_name": "data.label_column",
    "label_smoothing": "model.label_smoothing",
    "label_smoothing_factor": "model.label_smoothing",
    "max_length": "data.max_length",
    "max_seq_length": "data.max_length",
    "problem": "data.problem",
    "task": "data.task",
    "task_name": "data.task",
    "text_column_names": "data.text_columns",
    "text_columns": "data.text_columns",
    "token_dropout": "model.token_dropout",
}
"""Hyperparameter names that people use with SageMaker and with transformers' ``run_glue.py``."""

RECIPE = Recipe(
    "sequence-classification",
    Path(__file__).parent,
    f"{__package__}.module.SequenceClassifier",
    f"{__package__}.data.ClassificationDataModule",
    Names(SHORT_NAMES, own=OWN_OPTIONS),
)
