# SPDX-License-Identifier: Apache-2.0
"""A script whose hook of a given name waits for all ranks; its arguments: folder, strategy, place, rank.

A place is a hook of the module or of a callback. There the rank kills itself, once, while the other waits for it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

import lightning_sagemaker  # noqa: F401

HOOKS = [
    *("on_train_epoch_start", "on_train_batch_start", "on_before_zero_grad", "on_before_backward", "on_after_backward"),
    *("on_before_optimizer_step", "on_train_batch_end", "on_validation_start", "on_validation_epoch_start"),
    *("on_validation_batch_start", "on_validation_batch_end", "on_validation_epoch_end", "on_validation_end"),
    *("on_save_checkpoint", "on_train_epoch_end", "on_train_end"),
]
OF_MODULE = [
    *("transfer_batch_to_device", "training_step", "configure_gradient_clipping", "validation_step"),
    *("on_validation_model_eval", "on_validation_model_train"),
]
PLACES = [*(f"module.{name}" for name in (*HOOKS, *OF_MODULE)), *(f"callback.{name}" for name in HOOKS)]
_BEGIN, _LATE = 9, ("valid", "epoch", "save", "end")
"""The step in whose course a rank dies; places at an epoch's end are only reached later."""


class Net(LightningModule):
    """As small as can be."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(8, 2)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = (self.net(batch) - batch[:, :2]).square().mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("validation", (self.net(batch) - batch[:, :2]).square().mean(), sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def waiting(kind: type, names: list[str], prefix: str, meet: Callable[[str, Any], None]) -> type:
    """A subclass whose hooks wait for all ranks first."""

    def hook(name: str) -> Callable[..., Any]:
        inner = getattr(kind, name)

        def called(self: Any, *arguments: Any, **keywords: Any) -> Any:
            meet(f"{prefix}.{name}", self.trainer if prefix == "module" else arguments[0])
            return inner(self, *arguments, **keywords)

        return called

    return type(f"Waiting{kind.__name__}", (kind,), {name: hook(name) for name in names})


def main(folder: Path, strategy: str, place: str, rank: str) -> None:
    """Train, and write the weights."""

    def meet(here: str, trainer: Trainer) -> None:
        if here != place or trainer.sanity_checking or not (trainer.training or trainer.validating):
            return
        killed, begin = folder / "killed", 12 if any(word in place for word in _LATE) else _BEGIN
        if os.environ["RANK"] == rank and trainer.global_step >= begin and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.strategy.all_gather(torch.ones(1))

    seed_everything(1, verbose=False)
    module = waiting(Net, [*HOOKS, *OF_MODULE], "module", meet)()
    callbacks = [
        waiting(Callback, HOOKS, "callback", meet)(),
        ModelCheckpoint(folder / "checkpoints", monitor="validation"),
    ]
    trainer = Trainer(
        strategy=strategy, accelerator="cpu", devices=2, max_epochs=3, gradient_clip_val=1.0, callbacks=callbacks,
        logger=CSVLogger(folder, flush_logs_every_n_steps=1), log_every_n_steps=1, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    rows = torch.randn(48, 8, generator=torch.Generator().manual_seed(0))
    trainer.fit(module, DataLoader(rows, 4, shuffle=True), DataLoader(rows[:16], 4))
    if trainer.is_global_zero:
        weights = {name: value.tolist() for name, value in module.state_dict().items()}
        (folder / "weights.json").write_text(json.dumps(weights))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
