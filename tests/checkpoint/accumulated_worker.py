# SPDX-License-Identifier: Apache-2.0
"""Two ranks whose script accumulates gradients itself: stopped and resumed, and under stock DDP left alone. FOLDER."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader

from lightning_sagemaker import AutoResume, SpotInterruption
from lightning_sagemaker.callbacks.interruption import Interrupted
from lightning_sagemaker.collectives import clean_exit

EVERY = 4
OFTEN = 1e6
"""With this overhead ranks exchange signals after each batch, however busy the machine is."""


class Module(LightningModule):
    """One optimizer steps after each batch, the other after four: reduced after each batch, or after the last of them."""

    def __init__(self, reduces: bool) -> None:
        super().__init__()
        self.automatic_optimization, self.reduces = False, reduces
        self.fast, self.slow = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
        self.found = list[tuple[object, ...]]()

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        fast, slow = self.optimizers()  # type: ignore[misc]
        is_last = (batch_idx + 1) % EVERY == 0
        with self.trainer.strategy.model.no_sync() if not (is_last or self.reduces) else contextlib.nullcontext():
            loss = self.slow(self.fast(batch)).square().mean()
            self.manual_backward(loss)
        if self.reduces or is_last:
            fast.step()
            fast.zero_grad()
        if is_last:
            slow.step()
            slow.zero_grad()
        weights = [one.detach().sum().item() for one in self.parameters()]
        self.found.append((self.current_epoch, batch_idx, loss.item(), *weights))

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(one.parameters(), 0.01) for one in (self.fast, self.slow)]


class Stop(Callback):
    def __init__(self, batch: int) -> None:
        self.batch = batch

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        if trainer.fit_loop.total_batch_idx == self.batch and trainer.is_global_zero:
            os.kill(os.getpid(), signal.SIGTERM)


def train(strategy: str, reduces: bool, callbacks: list[Callback]) -> list[tuple[object, ...]]:
    seed_everything(1, verbose=False)
    trainer = Trainer(
        strategy=strategy, accelerator="cpu", devices=2, max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks,
    )  # fmt: skip
    module = Module(reduces)
    with contextlib.suppress(Interrupted):
        trainer.fit(module, DataLoader(torch.randn(64, 4), 2))  # type: ignore[arg-type]
    return module.found


if __name__ == "__main__":
    for reduces in (True, False):
        folder = Path(sys.argv[1], f"reduces={reduces}")
        alone = train("ddp", reduces, [])
        resumed = [
            row
            for batch in (1, 6, 19, None)
            for row in train(
                "sagemaker",
                reduces,
                [
                    AutoResume(folder),
                    SpotInterruption(folder, overhead=OFTEN),
                    *([] if batch is None else [Stop(batch)]),
                ],
            )
        ]
        assert resumed == alone, (reduces, resumed, alone)
    clean_exit.let_threads_finish()
