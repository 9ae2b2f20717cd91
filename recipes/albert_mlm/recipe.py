# SPDX-License-Identifier: Apache-2.0
"""Puts the parts together for the command line."""

from __future__ import annotations

from pathlib import Path

from lightning_sagemaker.recipes._common.cli.arguments import Names
from lightning_sagemaker.recipes._common.cli.options import COMMON_SHORT_NAMES, OWN_OPTIONS
from lightning_sagemaker.recipes._common.cli.recipe import Recipe

SHORT_NAMES = COMMON_SHORT_NAMES | {
    "dropout": "model.dropout",
    "max_seq_length": "data.sequence_length",
    "mlm_probability": "data.mask_probability",
    "model_size": "model.size",
    "sequence_length": "data.sequence_length",
    "test_file": "data.test",
    "text": "data.text",
    "train_file": "data.text",
    "validation_file": "data.validation",
}
"""Hyperparameter names that people use with SageMaker and with transformers' ``run_mlm.py``."""

RECIPE = Recipe(
    "albert-mlm",
    Path(__file__).parent,
    f"{__package__}.module.AlbertMLM",
    f"{__package__}.data.MLMDataModule",
    Names(SHORT_NAMES, own=OWN_OPTIONS),
)
