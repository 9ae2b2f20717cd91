# SPDX-License-Identifier: Apache-2.0
"""Two ranks with other numbers of batches of each of two loaders, under stock DDP and with what this package adds."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader

from lightning_sagemaker import SpotInterruption
from lightning_sagemaker.collectives import clean_exit


class Module(LightningModule):
    """Logs a mean over the ranks for each loader."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        return self.net(batch).square().mean()

    def validation_step(self, batch: torch.Tensor, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("found", self.net(batch).square().mean(), sync_dist=True)

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def loader(batches: int) -> DataLoader[Any]:
    rows = torch.randn(2 * batches, 4, generator=torch.Generator().manual_seed(batches))
    return DataLoader(rows, 2)  # type: ignore[arg-type]


def found(strategy: str) -> dict[str, float]:
    seed_everything(1, verbose=False)
    trainer = Trainer(
        strategy=strategy, accelerator="cpu", devices=2, max_epochs=2, use_distributed_sampler=False, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[] if strategy == "ddp" else [SpotInterruption(save_every=None, overhead=1e6)],
    )  # fmt: skip
    counts = [(5, 1), (1, 4)][trainer.global_rank]
    module = Module()
    trainer.fit(module, loader(3), [loader(count) for count in counts])
    values = {f"fit {name}": value.item() for name, value in trainer.callback_metrics.items()}
    trainer.test(module, [loader(count) for count in counts], verbose=False)
    return values | {f"test {name}": value.item() for name, value in trainer.callback_metrics.items()}


if __name__ == "__main__":
    stock = found("ddp")
    assert len(stock) == 4
    assert found("sagemaker") == stock
    clean_exit.let_threads_finish()
