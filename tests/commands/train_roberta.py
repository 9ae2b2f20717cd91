# SPDX-License-Identifier: Apache-2.0
"""A script as a user writes it: nothing in it says how the model is divided. Prints what it trained with."""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
import transformers
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader

import lightning_sagemaker

warnings.filterwarnings("ignore")
torch.set_num_threads(1)


class Classifier(LightningModule):
    """RoBERTa-large's shape (24 layers, 16 heads), a narrow one."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.RobertaConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=24,
            num_attention_heads=16,
            vocab_size=200,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.model = transformers.RobertaForSequenceClassification(config)
        self.losses = []

    def training_step(self, batch, batch_idx):
        loss = self.model(**batch).loss
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(float(self.trainer.callback_metrics["train_loss"]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main() -> None:
    seed_everything(0, verbose=False)
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 200, (64, 16), generator=random)
    data = [{"input_ids": row, "labels": row[0] % 2} for row in ids]
    trainer = Trainer(
        strategy="sagemaker",
        accelerator="cpu",
        max_steps=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    replicas = getattr(trainer.strategy, "degrees", None)
    copies = 1 if replicas is None else replicas.replicas(trainer.world_size)
    module = Classifier()
    trainer.fit(module, DataLoader(data, 16 // copies))
    job = lightning_sagemaker.SageMakerJob.from_environment()
    if job.global_rank in (0, None):
        found = {
            "strategy": type(trainer.strategy).__name__,
            "world_size": trainer.world_size,
            "replicas": copies,
            "losses": module.losses,
            "arguments": sys.argv[1:],
            "parameters": os.environ.get("SM_HP_MP_PARAMETERS"),
        }
        Path(os.environ.get("SM_MODEL_DIR", "."), "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
