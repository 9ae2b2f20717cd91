# SPDX-License-Identifier: Apache-2.0
"""transformers' own Trainer on the shim of SMP: trains, evaluates, predicts, saves and resumes. See ``make compat``.

``trainer_smp.py OUT_DIR`` prints a line that begins with RESULT. Under a launcher, with the variables of an SMP job, the
Trainer takes its SageMaker branch by itself; without, it trains in one process.
"""

import json
import os
import sys

import torch
from torch.utils.data import Dataset

from lightning_sagemaker.smdistributed import importer

importer.install()
import transformers  # noqa: E402
from transformers.utils import is_sagemaker_mp_enabled  # noqa: E402

torch.set_num_threads(1)
OUT = sys.argv[1]
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
}
DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class Parity(Dataset):
    def __init__(self, count: int, seed: int) -> None:
        self.ids = torch.randint(5, 100, (count, 12), generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        ids = self.ids[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids[0] % 2}


def train(resume=None) -> dict:
    arguments = transformers.TrainingArguments(
        OUT,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=int(os.environ.get("ACCUMULATE", "1")),
        max_steps=8,
        save_steps=4,
        logging_steps=1,
        learning_rate=1e-3,
        no_cuda=True,
        seed=1,
        report_to=[],
        disable_tqdm=True,
        optim="adamw_torch",
        dataloader_drop_last=True,
    )
    transformers.set_seed(1)
    trainer = transformers.Trainer(
        transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES, **DROPOUT)),
        arguments,
        train_dataset=Parity(64, 0),
        eval_dataset=Parity(32, 1),
    )
    trainer.train(resume_from_checkpoint=resume)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    evaluated, predicted = trainer.evaluate(), trainer.predict(Parity(32, 1))
    trainer.save_model(os.path.join(OUT, "final"))
    return {
        "losses": losses,
        "eval_loss": evaluated["eval_loss"],
        "predicted": float(predicted.predictions.sum()),
        "rows": len(predicted.predictions),
    }


found = {"smp": is_sagemaker_mp_enabled(), "version": transformers.__version__, "whole": train()}
found["resumed"] = train(os.path.join(OUT, "checkpoint-4"))
if os.environ.get("RANK", "0") == "0":
    saved = transformers.BertForSequenceClassification.from_pretrained(os.path.join(OUT, "final"))
    found["weights"] = float(sum(parameter.detach().double().sum() for parameter in saved.parameters()))
    print("RESULT", json.dumps(found), flush=True)
