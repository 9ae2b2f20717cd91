# SPDX-License-Identifier: Apache-2.0
"""What every rank runs: three stages that are sent what they read of each batch, against all of it.

``inputs_worker.py OUT_DIR`` writes ``OUT_DIR/rank-R.json``.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader

import lightning_sagemaker  # noqa: F401 - registers the strategies
from lightning_sagemaker.strategies.model_parallel import SMPStrategy

sys.path.insert(0, str(Path(__file__).parent))
from lightning_model import error_of
from place import PLACE

warnings.filterwarnings("ignore")
OUT, RANK = Path(sys.argv[1]), int(os.environ["RANK"])
BATCH, SIDE = 8, 48


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, hidden, mask):
        return hidden + torch.tanh(self.linear(hidden)) * mask[:, None]


class Images(LightningModule):
    """The first stage reads images, all of them the mask, the last one labels; nobody reads notes before ``late``."""

    def __init__(self, late: int | None = None) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(SIDE * SIDE, 16), nn.Linear(16, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.late = late

    def forward(self, batch):
        hidden = self.stem(batch["images"].flatten(1))
        for block in self.blocks:
            hidden = block(hidden, batch["mask"])
        return self.head(hidden)

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self(batch), batch["labels"]) * batch["scale"]
        if batch_idx == self.late:
            self.log("noted", batch["notes"].mean())
        return loss

    def validation_step(self, batch, batch_idx):
        logits = self(batch)
        self.log("accuracy", (logits.argmax(1) == batch["labels"]).float().mean())
        if not self.trainer.sanity_checking:
            self.log("brightness", batch["images"].mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Sent(Callback):
    """Bytes of batches, and the loss, of each step."""

    def __init__(self) -> None:
        self.bytes, self.losses = [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.bytes.append(trainer.strategy.groups.batches.sent_bytes)
        self.losses.append(float(outputs["loss"]))


def collate(samples):
    return {**torch.utils.data.default_collate(samples), "scale": 0.5}


def samples(count: int) -> list[dict]:
    random = torch.Generator().manual_seed(3)
    return [
        {
            "images": torch.rand(1, SIDE, SIDE, generator=random),
            "mask": torch.ones(()),
            "labels": number % 4,
            "notes": torch.rand(100, generator=random),
        }
        for number in range(count)
    ]


def fit(whole: bool, late: int | None = None) -> dict:
    seed_everything(0, verbose=False)
    sent = Sent()
    trainer = Trainer(
        strategy=SMPStrategy(parameters={"partitions": 3, "microbatches": 2, "ddp": True}, whole_batches=whole),
        **PLACE,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[sent],
    )
    data = DataLoader(samples(7 * BATCH - 3), BATCH, collate_fn=collate)  # the last batch is smaller
    trainer.fit(Images(late), data, DataLoader(samples(2 * BATCH), BATCH, collate_fn=collate))
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return {"losses": sent.losses, "bytes": sent.bytes, "metrics": metrics}


def main() -> None:
    torch.set_num_threads(1)
    found = {"needed": fit(False), "whole": fit(True), "late": error_of(lambda: fit(False, late=4))}
    found["late but whole"] = fit(True, late=4)["metrics"]
    (OUT / f"rank-{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
