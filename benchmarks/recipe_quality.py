# SPDX-License-Identifier: Apache-2.0
"""Speed is not bought with quality: a recipe and ``transformers.Trainer`` after the same number of examples.

    python benchmarks/recipe_quality.py --seeds 3

A small BERT from scratch on the embedded bank transactions, with the same tokenizer, data, optimizer, schedule, batch size
and number of passes on both sides. Prints the accuracy on lines of merchants never seen, for each seed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from lightning_sagemaker.recipes._common.cli import RecipeCLI
from lightning_sagemaker.recipes._common.sizes import BERT_SIZES
from lightning_sagemaker.recipes.sequence_classification.recipe import RECIPE
from lightning_sagemaker.recipes.sequence_classification.transactions import transactions

EPOCHS, BATCH, RATE, LENGTH = 4, 32, 1e-3, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [(ours(Path(folder), seed), theirs(Path(folder), seed)) for seed in range(args.seeds)]
    for seed, (mine, peer) in enumerate(rows):
        print(f"seed {seed}: ours {mine:.4f}, theirs {peer:.4f}")
    for name, values in zip(("ours", "theirs"), zip(*rows, strict=True), strict=True):
        print(f"{name}: mean {statistics.mean(values):.4f}, standard deviation {statistics.stdev(values):.4f}")


def ours(folder: Path, seed: int) -> float:
    """Accuracy of the recipe."""
    run = folder / f"ours-{seed}"
    options = ["--config", "tiny.yaml", "--strategy", "auto", "--seed_everything", seed, "--run_dir", run]
    options += ["--cache_dir", folder / "cache", "--max_epochs", EPOCHS, "--data.global_batch_size", BATCH]
    options += ["--learning_rate", RATE, "--max_length", LENGTH, "--trainer.limit_val_batches", 1.0]
    RecipeCLI(RECIPE, [str(word) for word in options])
    return float(json.loads((run / "output" / "metrics.json").read_text())["val_accuracy"])


def theirs(folder: Path, seed: int) -> float:
    """Accuracy of the peer, with the tokenizer that the recipe has trained."""
    import transformers
    from datasets import Dataset

    transformers.set_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / f"ours-{seed}" / "model")
    names = sorted({row["category"] for row in transactions(8000, "train")})

    def rows(split: str, count: int) -> Any:
        records = transactions(count, split)
        encoded = tokenizer([row["text"] for row in records], truncation=True, max_length=LENGTH)
        return Dataset.from_dict({**encoded, "labels": [names.index(row["category"]) for row in records]})

    config = transformers.BertConfig(vocab_size=len(tokenizer), num_labels=len(names), **BERT_SIZES["tiny"])
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "theirs"),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        weight_decay=0.01,
        adam_epsilon=1e-6,
        warmup_steps=0.1,
        logging_steps=1000,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=seed,
    )
    trainer = transformers.Trainer(
        transformers.BertForSequenceClassification(config),
        arguments,
        train_dataset=rows("train", 8000),
        eval_dataset=rows("val", 1000),
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda result: {"accuracy": float((result.predictions.argmax(-1) == result.label_ids).mean())},
    )
    trainer.train()
    return float(trainer.evaluate()["eval_accuracy"])


if __name__ == "__main__":
    main()
