# SPDX-License-Identifier: Apache-2.0
"""Puts the parts together for the command line."""

from __future__ import annotations

from pathlib import Path

from lightning_sagemaker.recipes._common.cli.arguments import Names
from lightning_sagemaker.recipes._common.cli.options import COMMON_SHORT_NAMES, OWN_OPTIONS
from lightning_sagemaker.recipes._common.cli.recipe import Recipe

SHORT_NAMES = COMMON_SHORT_NAMES | {
    "dataset_config_name": "data.dataset_config",
    "dataset_name": "data.train",
    "dropout": "model.dropout",
    "label_column": "data.label_column",
    "label_column_name": "data.label_column",
    "label_smoothing": "model.label_smoothing",
    "label_smoothing_factor": "model.label_smoothing",
    "max_eval_samples": "data.max_eval_samples",
    "max_length": "data.max_length",
    "max_predict_samples": "data.max_predict_samples",
    "max_seq_length": "data.max_length",
    "max_train_samples": "data.max_train_samples",
    "pad_to_max_length": "data.pad_to_max_length",
    "predict_file": "data.predict",
    "problem": "data.problem",
    "task": "data.task",
    "task_name": "data.task",
    "test_file": "data.test",
    "text_column_names": "data.text_columns",
    "text_columns": "data.text_columns",
    "token_dropout": "model.token_dropout",
    "train_file": "data.train",
    "validation_file": "data.validation",
}
"""Hyperparameter names that people use with SageMaker and with transformers' ``run_glue.py``."""

RECIPE = Recipe(
    "sequence-classification",
    Path(__file__).parent,
    f"{__package__}.module.SequenceClassifier",
    f"{__package__}.data.ClassificationDataModule",
    Names(SHORT_NAMES, own=OWN_OPTIONS),
)
