# SPDX-License-Identifier: Apache-2.0
"""Puts the parts together for the command line."""

from __future__ import annotations

from pathlib import Path

from lightning_sagemaker.recipes._common.cli.arguments import Names
from lightning_sagemaker.recipes._common.cli.options import FINE_TUNING_SHORT_NAMES, OWN_OPTIONS
from lightning_sagemaker.recipes._common.cli.recipe import Recipe

SHORT_NAMES = FINE_TUNING_SHORT_NAMES | {
    "doc_stride": "data.doc_stride",
    "max_answer_length": "model.max_answer_length",
    "max_query_length": "data.max_query_length",
    "max_seq_length": "data.max_seq_length",
    "n_best_size": "model.n_best_size",
    "null_score_diff_threshold": "model.null_score_threshold",
    "null_score_threshold": "model.null_score_threshold",
    "version_2_with_negative": "data.version_2_with_negative",
}
"""Hyperparameter names that people use with SageMaker and with transformers' ``run_qa.py``."""

RECIPE = Recipe(
    "bert-qa",
    Path(__file__).parent,
    f"{__package__}.module.QuestionAnswerer",
    f"{__package__}.data.QuestionAnsweringDataModule",
    Names(SHORT_NAMES, own=OWN_OPTIONS),
)
