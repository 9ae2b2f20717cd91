# SPDX-License-Identifier: Apache-2.0
"""What commands on the pages find in their folder, and how long ones are made short."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.conftest import ROOT

PRELUDE = """
import lightning.pytorch.demos.boring_classes as _boring
model = _boring.BoringModel()
"""
"""Before each Python block: what the page's reader has, a model."""

SHIM = """
from lightning_sagemaker.smdistributed import importer

assert importer.install()
"""
"""Before one that imports `smdistributed`, as `python -m lightning_sagemaker` has it."""

TRAIN = """
import lightning as L
from lightning.pytorch.demos.boring_classes import BoringModel
import lightning_sagemaker

trainer = L.Trainer(strategy="sagemaker", max_steps=2, logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(BoringModel())
"""

_STEPS = "--max_steps 2 --trainer.limit_val_batches 1 --trainer.num_sanity_val_steps 0 --precision 32-true"
_ALBERT = f"{_STEPS} --size tiny --vocab_size 300 --global_batch_size 8"
_FROM_SCRATCH = f"{_STEPS} --pretrained null --size tiny --vocab_size 300 --global_batch_size 8"

SHORTER = {
    r"lightning-sagemaker run \S+ fit --config tiny.yaml": _STEPS,
    r"lightning-sagemaker run albert-mlm fit --text articles.txt": _ALBERT,
    r"lightning-sagemaker run albert-mlm fit --config base.yaml": f"{_STEPS} --size tiny --global_batch_size 8"
    " --accumulate_grad_batches 1 --val_check_interval 1.0",
    r"python recipes/albert_mlm/train.py": _ALBERT,
    r"lightning-sagemaker run (bert-qa|sequence-classification) fit --train_file": _FROM_SCRATCH,
    r"lightning-sagemaker prepare albert-mlm": "--vocab-size 300",
    r"lightning-sagemaker local .*recipes": "--max_steps 2",
}
"""Pattern of a command -> arguments that are added to it: less data and fewer steps, no other path through the program."""


def make_workspace(folder: Path) -> None:
    """Put there what the pages' commands name.

    Args:
        folder: Empty.

    """
    (folder / "recipes").symlink_to(ROOT / "recipes")
    (folder / "docs").symlink_to(ROOT / "docs")
    (folder / "your").mkdir()
    for script in ("train.py", "your/module.py"):
        (folder / script).write_text(TRAIN)
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijkl", k=draw.randint(3, 7))) for _ in range(300)]
    texts = [" ".join(draw.choices(words, k=draw.randint(20, 200))) for _ in range(200)]
    (folder / "articles.txt").write_text("\n".join(texts) + "\n")
    rows = [f"{' '.join(draw.choices(words, k=6))},{('yes', 'no')[number % 2]}" for number in range(80)]
    (folder / "train.csv").write_text("\n".join(["text,intent", *rows]) + "\n")
    export = "\n".join(["text;intent", *(f"Gebühr {row.replace(',', ';')}" for row in rows)]) + "\n"
    (folder / "export.csv").write_text(export, encoding="cp1252")
    (folder / "new.csv").write_text("text\n" + "\n".join(row.partition(",")[0] for row in rows[:9]) + "\n")
    (folder / "model").mkdir()
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 64, "vocab_size": 100}
    (folder / "model" / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
    for name in ("train-v1.1.json", "dev-v1.1.json", "questions.json"):
        (folder / name).write_text(json.dumps(_squad(draw, words)))


def _squad(draw: random.Random, words: list[str]) -> dict[str, object]:
    """Questions in SQuAD's form, of which the answer is a word of the context."""
    paragraphs = []
    for number in range(20):
        context = draw.choices(words, k=40)
        place = draw.randrange(40)
        answer = {"text": context[place], "answer_start": len(" ".join([*context[:place], ""]))}
        question = {"id": str(number), "question": f"what is {context[place]}", "answers": [answer]}
        paragraphs.append({"context": " ".join(context), "qas": [question]})
    return {"version": "1.1", "data": [{"title": "words", "paragraphs": paragraphs}]}
