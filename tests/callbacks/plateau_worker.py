# SPDX-License-Identifier: Apache-2.0
"""Two ranks whose schedules follow what each measures: stopped and resumed, and under stock DDP left alone. FOLDER."""

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


class Module(LightningModule):
    """What rank zero measures improves in each epoch; what the other measures never does."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.found = torch.nn.Linear(4, 1), list[tuple[object, ...]]()

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        return self.net(batch).square().mean()

    def on_train_epoch_end(self) -> None:
        self.log("own", torch.tensor(-1.0 * self.current_epoch if self.global_rank == 0 else 1.0))

    def on_train_batch_end(self, *_: object) -> None:
        schedule = self.lr_schedulers()
        assert isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau)
        rate = schedule.optimizer.param_groups[0]["lr"]
        self.found.append((self.global_step, rate, float(schedule.best), schedule.num_bad_epochs))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "own"}}


class Stop(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        if trainer.global_step == self.step and trainer.is_global_zero:
            os.kill(os.getpid(), signal.SIGTERM)


def train(strategy: str, callbacks: list[Callback]) -> list[tuple[object, ...]]:
    seed_everything(1, verbose=False)
    trainer = Trainer(
        strategy=strategy, accelerator="cpu", devices=2, max_epochs=8, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks,
    )  # fmt: skip
    module = Module()
    with contextlib.suppress(Interrupted):
        trainer.fit(module, DataLoader(torch.ones(16, 4), 2))  # type: ignore[arg-type]
    return module.found


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    alone = train("ddp", [])
    rank = int(os.environ["RANK"])
    assert (alone[-1][1] == 0.1) == (rank == 0), alone
    assert alone[-1][2] == (-6.0, 1.0)[rank], alone
    # Within an epoch in which the other rank has waited for one epoch, and after its first reduction.
    resumed = [
        row
        for step in (10, 18, None)
        for row in train(
            "sagemaker",
            [AutoResume(folder), SpotInterruption(folder, overhead=1e6), *([] if step is None else [Stop(step)])],
        )
    ]
    assert resumed == alone, (resumed, alone)
    clean_exit.let_threads_finish()
