# SPDX-License-Identifier: Apache-2.0
"""The other side of ``recipes.py``: ``transformers.Trainer`` as its users write it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
from transformers import AutoTokenizer, Trainer, TrainerCallback, TrainingArguments, set_seed

from recipes import BATCH, LENGTH, SIZES, UNTIMED, Clock, run_ours, squad_file  # type: ignore[attr-defined] # beside this file


def prepare(args: argparse.Namespace) -> None:
    """Tokenize on both sides."""
    run_ours(args, prepare_only=True)
    tokenizer = AutoTokenizer.from_pretrained(args.work / args.job / "tokenizer")
    kind = args.job.split("-")[0]
    rows = {"mlm": _mlm_rows, "qa": _qa_rows, "classification": _classification_rows}[kind](args, tokenizer)
    datasets.Dataset.from_dict(rows).save_to_disk(args.work / args.job / args.peer)
    tokens = sum(map(sum, rows["attention_mask"])) / len(rows["attention_mask"])
    (args.work / "report.json").write_text(json.dumps({"tokens": tokens, "vocabulary": len(tokenizer)}))


def _mlm_rows(args: argparse.Namespace, tokenizer: Any) -> dict[str, list[Any]]:
    from lightning_sagemaker.recipes.albert_mlm.builtin_text import builtin_documents

    length = LENGTH[args.job]
    ids = [token for document in builtin_documents() for token in tokenizer(document)["input_ids"]]
    chunks = [ids[begin : begin + length] for begin in range(0, len(ids) - length + 1, length)]
    return {"input_ids": chunks, "attention_mask": [[1] * length for _ in chunks]}


def _qa_rows(args: argparse.Namespace, tokenizer: Any) -> dict[str, list[Any]]:
    """Windows and labels as transformers' ``run_qa.py`` makes them."""
    from lightning_sagemaker.recipes.bert_qa.squad import place_answers, read_questions

    questions = place_answers(read_questions(str(squad_file(args)), "--squad", "train"), "skip", "the file")
    encoded = tokenizer(
        [question.question.lstrip() for question in questions],
        [question.context for question in questions],
        truncation="only_second",
        max_length=LENGTH[args.job],
        stride=128,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding="max_length" if args.peer == "padded" else False,
    )
    starts, ends = [], []
    for number, owner in enumerate(encoded["overflow_to_sample_mapping"]):
        question = questions[owner]
        begin, end = question.starts[0], question.starts[0] + len(question.answers[0])
        first, last = encoded.char_to_token(number, begin, 1), encoded.char_to_token(number, end - 1, 1)
        inside = first is not None and last is not None
        starts.append(first if inside else 0)
        ends.append(last if inside else 0)
    names = ("input_ids", "token_type_ids", "attention_mask")
    return {**{name: encoded[name] for name in names}, "start_positions": starts, "end_positions": ends}


def _classification_rows(args: argparse.Namespace, tokenizer: Any) -> dict[str, list[Any]]:
    from lightning_sagemaker.recipes._common.data.tables import read_files
    from lightning_sagemaker.recipes.sequence_classification.transactions import transactions

    records = read_files([Path(args.table)]) if args.table else transactions(8000, "train")
    names = sorted({record["category"] for record in records})
    options: dict[str, Any] = {"truncation": True, "max_length": LENGTH[args.job]}
    encoded = tokenizer(
        [record["text"] for record in records], padding="max_length" if args.peer == "padded" else False, **options
    )
    return {**encoded, "labels": [names.index(record["category"]) for record in records]}


def run_theirs(args: argparse.Namespace) -> None:
    if not args.as_started:
        from lightning_sagemaker.recipes._common.modules.speed import tune_allocator

        tune_allocator()
    set_seed(args.seed)
    data = datasets.load_from_disk(args.work / args.job / args.peer)
    tokenizer = AutoTokenizer.from_pretrained(args.work / args.job / "tokenizer")
    clock = Clock()

    class Ticks(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.tick()

    settings = {"vocab_size": len(tokenizer), **SIZES[args.job]}
    collator: Any = transformers.default_data_collator
    if args.peer in ("dynamic", "best"):
        collator = transformers.DataCollatorWithPadding(tokenizer)
    if args.job.startswith("mlm"):
        model = transformers.AlbertForMaskedLM(transformers.AlbertConfig(**settings))
        collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    elif args.job.startswith("qa"):
        model = transformers.BertForQuestionAnswering(transformers.BertConfig(**settings))
    else:
        labels = len(set(data["labels"]))
        model = transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=labels, **settings))  # type: ignore[call-arg]
    best = {"train_sampling_strategy": "group_by_length"} if args.peer == "best" else {}
    arguments = TrainingArguments(
        output_dir=str(args.work / "theirs"),
        max_steps=args.peer_steps + UNTIMED,
        per_device_train_batch_size=BATCH[args.job],
        learning_rate=1e-4,
        logging_steps=1000,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=args.seed,
        bf16=not args.as_started and args.precision == "bf16-mixed",
        use_cpu=not torch.cuda.is_available(),  # without it, bf16 is refused there
        torch_compile=args.compile,
        **best,
    )
    Trainer(model, arguments, train_dataset=data, data_collator=collator, callbacks=[Ticks()]).train()
    clock.report(args)
