# SPDX-License-Identifier: Apache-2.0
"""One process whose gradients are sent in 16 bits: on a GPU by nccl, in a stream beside the backward pass.

``reduction_worker.py OUT_DIR`` writes ``OUT_DIR/rank-R.json``: compression -> the losses.
"""

import json
import os
import sys
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset

from lightning_sagemaker import SMDDPStrategy

OUT, ACCELERATOR = Path(sys.argv[1]), os.environ.get("LIGHTNING_SAGEMAKER_TEST_ACCELERATOR", "cuda")


class Net(LightningModule):
    """Large enough for several buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
        self.losses: list[float] = []

    def training_step(self, batch, batch_idx):
        loss = (self.net(batch[0]) - batch[0]).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.5)


def losses(**options) -> list[float]:
    seed_everything(0, verbose=False)
    model = Net()
    data = DataLoader(TensorDataset(torch.randn(96, 512, generator=torch.Generator().manual_seed(1))), batch_size=8)
    trainer = Trainer(
        strategy=SMDDPStrategy(bucket_cap_mb=2, **options),
        accelerator=ACCELERATOR,
        devices=1,
        max_steps=12,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data)
    return model.losses


def main() -> None:
    found = {"None": losses()}
    for compression in ("bf16", "fp16", "powersgd"):
        start = {"powersgd_start": 2} if compression == "powersgd" else {}
        found[compression] = losses(gradient_compression=compression, **start)
    found["auto"] = losses(gradient_reduction="auto", gradient_compression="bf16")
    (OUT / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
