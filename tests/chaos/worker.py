# SPDX-License-Identifier: Apache-2.0
"""The job that is interrupted: a tiny ALBERT with dropout, which writes down what each step trained on and its loss.

``worker.py FOLDER STEPS`` appends to ``FOLDER/rank-R.jsonl``: a line per step with the loss to the last bit, the samples and
the time.
"""

import json
import os
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import transformers
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, Dataset

from lightning_sagemaker import AutoResume, Heartbeat, SpotInterruption
from lightning_sagemaker.data.batches import TrainingBatches

warnings.filterwarnings("ignore")
SAMPLES, GLOBAL_BATCH, LENGTH = 96, 8, 16
SAVE_EVERY = float(os.environ.get("SAVE_EVERY", "0.5"))
PAUSE = float(os.environ.get("PAUSE", "0.03"))
OVERHEAD = 0.001
RANK = int(os.environ.get("RANK", "0"))


class Tokens(Dataset):
    """Batches of draws."""

    def __getitem__(self, draws: list[int]) -> dict[str, torch.Tensor]:
        indices = torch.tensor(draws) % SAMPLES
        ids = (indices[:, None] * 7 + torch.arange(LENGTH)) % 50
        return {"input_ids": ids, "labels": ids.roll(1, 1), "index": indices}


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        config = transformers.AlbertConfig(
            vocab_size=50,
            embedding_size=16,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            hidden_dropout_prob=0.1,
            attention_probs_dropout_prob=0.1,
        )
        self.net = transformers.AlbertForMaskedLM(config)

    def training_step(self, batch, batch_idx):
        self.index = batch.pop("index").tolist()
        return self.net(**batch).loss

    def validation_step(self, batch, batch_idx):
        batch.pop("index")
        time.sleep(PAUSE)
        self.log("val_loss", self.net(**batch).loss, sync_dist=True)

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        batch.pop("index")
        return self.net(**batch).logits

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 50))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _loader(self):
        place = getattr(self.trainer.strategy, "distributed_sampler_kwargs", {"num_replicas": 1, "rank": 0})
        batches = TrainingBatches(SAMPLES, GLOBAL_BATCH, **place, seed=3)
        return DataLoader(Tokens(), batch_size=None, sampler=batches)

    def train_dataloader(self):
        return self._loader()

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class Record(Callback):
    def __init__(self, folder: Path) -> None:
        self.path = folder / f"rank-{RANK}.jsonl"

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        line = {"step": trainer.global_step, "loss": outputs["loss"].item().hex(), "samples": pl_module.index}
        line["time"] = time.monotonic()
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        time.sleep(PAUSE)


def train(folder: Path, steps: int, stage: str = "fit", **options: Any) -> None:
    seed_everything(1, verbose=False)
    checkpoints = options.pop("checkpoints", folder / "checkpoints")
    trainer = Trainer(
        accelerator="cpu",
        max_steps=steps,
        max_epochs=-1,
        limit_val_batches=options.pop("limit_val_batches", 2),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[
            Record(folder),
            AutoResume(checkpoints),
            SpotInterruption(checkpoints, save_every=timedelta(seconds=SAVE_EVERY), patience=10, overhead=OVERHEAD),
            Heartbeat(every=0.5, patience=6),
            *options.pop("callbacks", []),
        ],
        **options,
    )
    getattr(trainer, stage)(Model())


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    train(folder, int(sys.argv[2]), strategy="sagemaker")
    (folder / "done").touch()


if __name__ == "__main__":
    main()
