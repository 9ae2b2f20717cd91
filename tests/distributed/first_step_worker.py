# SPDX-License-Identifier: Apache-2.0
"""Jobs with sharded optimizers that are saved before or after their first step: ``first_step_worker.py OUT_DIR``."""

import json
import sys
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from lightning_sagemaker import FabricSMDDPFSDPStrategy, SMDDPFSDPStrategy

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}
FORMS = {
    "file": {},
    "parts": {"save_distributed_checkpoint": True},
    "background": {"async_checkpoint": True},
}
SAVED_AFTER = [0, 2]
STEPS = 4
SAMPLE = torch.arange(8.0) / 8  # all are alike, so that only the optimizer has a position


class Model(LightningModule):
    def __init__(self, optimizer: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.optimizer = optimizer
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

    def training_step(self, batch, _):
        return self.layers(batch).square().sum()

    def configure_optimizers(self):
        return OPTIMIZERS[self.optimizer](self.parameters())


class Saves(Callback):
    def __init__(self, path: Path, after: int) -> None:
        self.path, self.after = path, after

    def on_train_start(self, trainer, _):
        if not self.after:
            trainer.save_checkpoint(self.path)

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.after:
            trainer.save_checkpoint(self.path)


def weights(module: torch.nn.Module) -> list[float]:
    return [number for one in module.parameters() for number in one.full_tensor().flatten().tolist()]


def trained(optimizer: str, form: str, callbacks: list[Callback], ckpt_path: Path | None = None) -> list[float]:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    strategy = SMDDPFSDPStrategy(**FORMS[form])
    trainer = Trainer(
        strategy=strategy, accelerator="cpu", devices=2, max_steps=STEPS, max_epochs=-1, callbacks=callbacks, **quiet
    )
    model = Model(optimizer)
    trainer.fit(model, DataLoader([SAMPLE] * 64, 2), ckpt_path=ckpt_path)
    return weights(model)


def with_fabric(optimizer: str, parts: bool, path: Path, after: int) -> list[list[float]]:
    """Weights of a job that is left alone, of one that saves, and of one that goes on from there."""
    found = []
    for saves, resumes in ((False, False), (True, False), (False, True)):
        fabric = Fabric(
            accelerator="cpu", devices=2, strategy=FabricSMDDPFSDPStrategy(save_distributed_checkpoint=parts)
        )
        fabric.launch()
        bare = Model(optimizer).layers
        model, optimized = fabric.setup(bare, OPTIMIZERS[optimizer](bare.parameters()))
        state = {"model": model, "optimizer": optimized}
        if resumes:
            fabric.load(path, state)
        for step in range(after if resumes else 0, STEPS):
            if step == after and saves:
                fabric.save(path, state)
            fabric.backward(model(SAMPLE[None]).square().sum())
            optimized.step()
            optimized.zero_grad()
        found.append(weights(model))
    return found


def main(folder: Path) -> None:
    results = {}
    for optimizer in OPTIMIZERS:
        left_alone = trained(optimizer, "file", [])
        for form in FORMS:
            for after in SAVED_AFTER:
                path = folder / f"{optimizer}-{form}-{after}.ckpt"
                saving = trained(optimizer, form, [Saves(path, after)])
                results[f"{optimizer}-{form}-{after}"] = [left_alone, saving, trained(optimizer, form, [], path)]
        for parts in (False, True):
            for after in SAVED_AFTER:
                path = folder / f"{optimizer}-fabric-{parts}-{after}.ckpt"
                ran = with_fabric(optimizer, parts, path, after)
                results[f"{optimizer}-fabric-{'parts' if parts else 'file'}-{after}"] = ran
    if torch.distributed.get_rank() == 0:
        (folder / "results.json").write_text(json.dumps(results))
    torch.distributed.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
