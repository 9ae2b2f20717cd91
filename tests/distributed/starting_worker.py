# SPDX-License-Identifier: Apache-2.0
"""``starting_worker.py OUT KIND:STRATEGY ...``: trains under each strategy, whose processes Lightning starts from here.

A strategy is a name, or a class and a start method as ``SMDDPStrategy=spawn``. The main process writes what training left
in it, by strategy, to ``OUT``.
"""

import json
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.fabric import strategies as fabric_strategies
from lightning.pytorch import LightningModule, Trainer, seed_everything, strategies
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

import lightning_sagemaker

warnings.filterwarnings("ignore")
logging.getLogger("lightning").setLevel(logging.ERROR)
PROCESSES, SAMPLES = 2, 24


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader() -> DataLoader:
    return DataLoader(TensorDataset(torch.arange(SAMPLES * 3.0).reshape(SAMPLES, 3).cos()), batch_size=4)


def strategy_of(kind: str, text: str):
    name, _, method = text.partition("=")
    if not method:
        return name
    home = {"Trainer": strategies, "Fabric": fabric_strategies}[kind]
    if name != "DDPStrategy":
        home, name = lightning_sagemaker, {"Trainer": "", "Fabric": "Fabric"}[kind] + name
    return getattr(home, name)(start_method=method)


def with_trainer(strategy) -> dict:
    model, best = Model(), ModelCheckpoint(monitor="loss")
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            strategy=strategy,
            accelerator="cpu",
            devices=PROCESSES,
            max_epochs=2,
            callbacks=[best, lightning_sagemaker.SpotInterruption(), lightning_sagemaker.Heartbeat()],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(model, loader())
        return {
            "weights": [p.tolist() for p in model.parameters()],
            "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
            "best": Path(best.best_model_path).name,
            "state": str(trainer.state.status),
        }


def step(fabric: Fabric) -> dict:
    seed_everything(1, verbose=False)  # the processes of a fork server are not seeded by Lightning
    model = torch.nn.Linear(3, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for (batch,) in fabric.setup_dataloaders(loader()):
        fabric.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    ranks = fabric.all_gather(torch.tensor(fabric.global_rank)).tolist()
    return {"weights": [p.tolist() for p in model.parameters()], "ranks": ranks}


def with_fabric(strategy) -> dict:
    return Fabric(strategy=strategy, accelerator="cpu", devices=PROCESSES).launch(step)


def main(out: str, *cases: str) -> None:
    results = {}
    for case in cases:
        kind, text = case.split(":")
        if "LOCAL_RANK" not in os.environ:  # popen has run this script for each rank, and says where they meet
            for name in ("MASTER_PORT", "MASTER_ADDR"):  # of the case before
                os.environ.pop(name, None)
        seed_everything(1, verbose=False)
        results[case] = {"Trainer": with_trainer, "Fabric": with_fabric}[kind](strategy_of(kind, text))
    if os.environ.get("LOCAL_RANK", "0") == "0":
        Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
