# SPDX-License-Identifier: Apache-2.0
"""All recipes in one group of processes: the same few steps, then validation and prediction. Run by torchrun too."""

import os
import sys
from pathlib import Path

from lightning_sagemaker.recipes._common.cli.recipe_cli import RecipeCLI
from lightning_sagemaker.recipes.albert_mlm.recipe import RECIPE as ALBERT
from lightning_sagemaker.recipes.bert_qa.recipe import RECIPE as QUESTIONS
from lightning_sagemaker.recipes.sequence_classification.recipe import RECIPE as CLASSIFICATION

STEPS = 6

COMMON = ["--config", "tiny.yaml", "--precision", "32-true", "--global_batch_size", "16", "--log_every_n_steps", "1"]
COMMON += ["--trainer.num_sanity_val_steps", "0"]
RUNS = {
    "albert": (ALBERT, ["--vocab_size", "300", "--data.sentence_order", "true", "--data.mask_unit", "word"]),
    "questions": (QUESTIONS, ["--train_file", "facts", "--max_eval_samples", "45", "--max_train_samples", "300"]),
    "classes": (
        CLASSIFICATION,
        [
            "--dropout",
            "0",
            "--max_eval_samples",
            "75",
            "--max_train_samples",
            "400",
            "--data.class_weights",
            "balanced",
        ],
    ),
}


def run(folder: Path, cache: Path, text: Path, *more: str) -> None:
    wanted = os.environ.get("LIGHTNING_SAGEMAKER_TEST_RECIPES", ",".join(RUNS)).split(",")
    for name, (recipe, options) in ((name, RUNS[name]) for name in wanted):
        where = ["--run_dir", folder / name, "--cache_dir", cache]
        where += ["--text", text, "--max_seq_length", "32"] if name == "albert" else []
        # All epochs' steps, so that batches of a second epoch and a validation between them are compared too.
        training = ["--trainer.max_epochs", "-1", "--max_steps", STEPS, *more]
        if "--val_check_interval" not in more:
            training += ["--val_check_interval", "3"]
        RecipeCLI(recipe, [str(word) for word in [*COMMON, *options, *where, *training]])
        last = folder / name / "checkpoints" / "last.ckpt"
        RecipeCLI(recipe, [str(word) for word in ["predict", *COMMON, *options, *where, "--ckpt_path", last]])


if __name__ == "__main__":
    run(*map(Path, sys.argv[1:4]), *sys.argv[4:])
