# SPDX-License-Identifier: Apache-2.0
"""Speed is not bought with quality: a recipe and ``transformers.Trainer`` after the same number of examples.

    python benchmarks/recipe_quality.py classification --seeds 3
    python benchmarks/recipe_quality.py mlm
    python benchmarks/recipe_quality.py qa

Small models from scratch on embedded data, with the same tokenizer, samples, model, optimizer, schedule, batch size and
number of examples on both sides. Both are judged by the same program: accuracy on lines of merchants never seen, the
loss of masked tokens of articles never seen, F1 on facts about towns never seen.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from datasets import Dataset

from lightning_sagemaker.recipes._common.cli.recipe import Recipe
from lightning_sagemaker.recipes._common.cli.recipe_cli import RecipeCLI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=sorted(JOBS))
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [JOBS[args.job](Path(folder), seed) for seed in range(args.seeds)]
    for seed, (mine, peer) in enumerate(rows):
        print(f"seed {seed}: ours {mine:.4f}, theirs {peer:.4f}")
    for name, values in zip(("ours", "theirs"), zip(*rows, strict=True), strict=True):
        print(f"{name}: mean {statistics.mean(values):.4f}, standard deviation {statistics.stdev(values):.4f}")


def run(recipe: Recipe, folder: Path, seed: int, *options: object, stage: str = "fit") -> tuple[RecipeCLI, Path]:
    """One stage of a recipe with its tiny configuration, and the folder that it wrote to."""
    place = folder / f"{stage}-{seed}"
    common = [stage, "--config", "tiny.yaml", "--strategy", "auto", "--seed_everything", seed, "--run_dir", place]
    words = [*common, "--cache_dir", folder / "cache", *options]
    return RecipeCLI(recipe, [str(word) for word in words]), place / "output"


def arguments(folder: Path, seed: int, **options: Any) -> transformers.TrainingArguments:
    """The peer's settings that are equal in all jobs."""
    return transformers.TrainingArguments(
        output_dir=str(folder / "theirs"),
        weight_decay=0.01,
        adam_epsilon=1e-6,
        max_grad_norm=1.0,
        logging_steps=1000,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=seed,
        **options,
    )


def classification(folder: Path, seed: int) -> tuple[float, float]:
    """Accuracies."""
    from lightning_sagemaker.recipes._common.modules.sizes import BERT_SIZES
    from lightning_sagemaker.recipes.sequence_classification.recipe import RECIPE
    from lightning_sagemaker.recipes.sequence_classification.transactions import transactions

    options = ["--max_epochs", 4, "--data.global_batch_size", 32, "--learning_rate", 1e-3, "--max_length", 64]
    cli, output = run(RECIPE, folder, seed, *options, "--trainer.limit_val_batches", 1.0)
    ours = float(json.loads((output / "metrics.json").read_text())["val_accuracy"])

    transformers.set_seed(seed)
    tokenizer = cli.datamodule.load_tokenizer()
    names = sorted({row["category"] for row in transactions(8000, "train")})

    def rows(split: str, count: int) -> Any:
        records = transactions(count, split)
        encoded = tokenizer([row["text"] for row in records], truncation=True, max_length=64)
        return Dataset.from_dict({**encoded, "labels": [names.index(row["category"]) for row in records]})

    config = transformers.BertConfig(vocab_size=len(tokenizer), num_labels=len(names), **BERT_SIZES["tiny"])  # type: ignore[call-arg]
    settings = {"num_train_epochs": 4, "per_device_train_batch_size": 32, "learning_rate": 1e-3, "warmup_steps": 0.1}
    trainer = transformers.Trainer(
        transformers.BertForSequenceClassification(config),
        arguments(folder, seed, **settings),
        train_dataset=rows("train", 8000),
        eval_dataset=rows("val", 1000),
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda result: {"accuracy": float((result.predictions.argmax(-1) == result.label_ids).mean())},
    )
    trainer.train()
    return ours, float(trainer.evaluate()["eval_accuracy"])


def mlm(folder: Path, seed: int) -> tuple[float, float]:
    """Losses of the validation articles' masked tokens, masked once for all."""
    from lightning_sagemaker.recipes.albert_mlm.recipe import RECIPE
    from lightning_sagemaker.recipes.albert_mlm.shards import Shards

    cli, output = run(RECIPE, folder, seed, "--trainer.limit_val_batches", 0)
    data, mine = cli.datamodule, cli.model.model
    tokenizer = data.load_tokenizer()
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)

    def rows(split: str) -> Any:
        files = data.manifest["files"]
        shards = Shards(data.folder, {name: files[name] for name in files if name.startswith(f"{split}-")})
        return Dataset.from_dict({"input_ids": shards.rows(np.arange(len(shards))).tolist()})

    transformers.set_seed(seed)
    model = transformers.AlbertForMaskedLM(transformers.AlbertConfig(**_albert(mine.config)))
    settings = {"max_steps": 400, "per_device_train_batch_size": 64, "learning_rate": 2e-3, "warmup_steps": 100}
    trainer = transformers.Trainer(
        model,
        arguments(folder, seed, **settings),
        train_dataset=rows("train"),
        data_collator=collator,
    )
    trainer.train()
    unseen, losses = rows("val"), []
    for trained in (transformers.AlbertForMaskedLM.from_pretrained(output.parent / "model"), trainer.model):
        transformers.set_seed(1000)  # the same masks for both
        judge = transformers.Trainer(trained, arguments(folder, 0), eval_dataset=unseen, data_collator=collator)
        losses.append(float(judge.evaluate()["eval_loss"]))
    return losses[0], losses[1]


def _albert(config: Any) -> dict[str, Any]:
    names = ("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    more = ("intermediate_size", "max_position_embeddings", "hidden_dropout_prob", "attention_probs_dropout_prob")
    return {name: getattr(config, name) for name in (*names, *more)}


def qa(folder: Path, seed: int) -> tuple[float, float]:
    """F1 scores, both by the recipe's ``validate``."""
    from lightning_sagemaker.recipes.bert_qa.recipe import RECIPE

    cli, output = run(RECIPE, folder, seed)
    ours = float(json.loads((output / "metrics.json").read_text())["val_f1"])
    windows, tokenizer = cli.datamodule.splits["train"], cli.datamodule.load_tokenizer()
    samples = [{name: column[0] for name, column in windows[[index]].items()} for index in range(len(windows))]
    rows = [
        {
            "input_ids": sample["input_ids"].tolist(),
            "token_type_ids": sample["token_type_ids"].tolist(),
            "start_positions": int(sample["labels"][0]),
            "end_positions": int(sample["labels"][1]),
        }
        for sample in samples
    ]
    transformers.set_seed(seed)
    model = transformers.BertForQuestionAnswering(transformers.BertConfig(**_bert(cli.model.model.config)))
    settings = {"num_train_epochs": 2, "per_device_train_batch_size": 32, "learning_rate": 1e-3, "warmup_steps": 0.1}
    trainer = transformers.Trainer(
        model,
        arguments(folder, seed, **settings),
        train_dataset=Dataset.from_list(rows),
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
    )
    trainer.train()
    peer = folder / f"peer-{seed}"
    model.save_pretrained(peer)
    tokenizer.save_pretrained(peer)
    _, judged = run(RECIPE, folder, seed, "--pretrained", peer, stage="validate")
    return ours, float(json.loads((judged / "metrics-validate.json").read_text())["val_f1"])


def _bert(config: Any) -> dict[str, Any]:
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    more = ("max_position_embeddings", "hidden_dropout_prob", "attention_probs_dropout_prob")
    return {name: getattr(config, name) for name in (*names, *more)}


JOBS = {"classification": classification, "mlm": mlm, "qa": qa}


if __name__ == "__main__":
    main()
