# SPDX-License-Identifier: Apache-2.0
"""A training that agrees on things before its first step, or in each epoch; each rank kills itself once: FOLDER KIND."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from lightning_sagemaker import InterruptibleLoop, SMDDPFSDPStrategy

FOLDER, KIND = Path(sys.argv[1]), sys.argv[2]
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
EPOCHS = 2 if KIND == "epochs" else 1
DATA = TensorDataset(torch.arange(400.0 / EPOCHS).reshape(-1, 1) / 400, torch.arange(400 // EPOCHS))
DEATHS = {8: 0, 33 if KIND == "epochs" else 20: 1}


def own(name: str) -> dict[str, object]:
    """What only this process has: two processes of a rank differ, too."""
    return {name: f"{RANK}-{os.getpid()}-{'x' * (os.getpid() % 7)}"}


def counts(rank: int, ranks: int) -> torch.Tensor:
    """Of this rank's part of the data."""
    return torch.bincount((DATA.tensors[0][rank::ranks, 0] * (rank + 2)).long(), minlength=8)


def into_one() -> list[int]:
    """One number of each rank, gathered into a tensor."""
    everyone = torch.zeros(dist.get_world_size(), dtype=torch.long)
    dist.all_gather_into_tensor(everyone, torch.tensor([os.getpid()]))
    return everyone.tolist()  # type: ignore[no-any-return]


def note(step: int, samples: torch.Tensor, **facts: object) -> None:
    """Write what this rank has found, and die where it is to."""
    (FOLDER / f"began-{RANK}-{os.getpid()}").touch()
    is_replaced = len(list(FOLDER.glob("began-*"))) == RANKS + len(list(FOLDER.glob("died-*")))
    time.sleep(0.03 if is_replaced else 0.3)  # the next is to die once the replacement has joined
    with (FOLDER / f"rank-{RANK}.jsonl").open("a") as file:
        file.write(json.dumps([step, samples.tolist(), facts]) + "\n")
    died = FOLDER / f"died-{step}"
    if DEATHS.get(step) == RANK and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Module(LightningModule):
    """Asks the other ranks in each hook before the training."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.found = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Linear(4, 1)), dict[str, object]()

    def setup(self, stage: str) -> None:
        mine = counts(dist.get_rank(), dist.get_world_size())
        dist.all_reduce(mine)
        self.found["setup"] = mine.tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        self.found["name"] = self.trainer.strategy.broadcast(own("name"))
        self.found["world"] = self.trainer.world_size
        return torch.optim.SGD(self.parameters(), 0.1)

    def on_fit_start(self) -> None:
        everyone: list[object] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, own("each"))
        self.found["each"] = everyone
        self.found["into"] = into_one()

    def on_train_start(self) -> None:
        mine = counts(self.global_rank, self.trainer.world_size).to(self.device)
        self.found["gathered"] = self.all_gather(mine).tolist()  # type: ignore[union-attr]

    def on_train_epoch_start(self) -> None:
        if KIND != "epochs":
            return
        dist.barrier()
        everyone: list[object] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, own("epoch"))
        total = torch.tensor([os.getpid(), self.current_epoch])
        dist.all_reduce(total)
        self.found["epoch"] = [everyone, into_one(), total.tolist()]

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(DATA, 8 // self.trainer.world_size, sampler=DistributedSampler(DATA, seed=5))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if KIND == "epochs":
            self.all_gather(batch[1])  # such a step waits for the replacement, which so joins within an epoch
        note(self.global_step, batch[1], **self.found)
        return self.net(batch[0]).square().mean()  # type: ignore[no-any-return]


def with_fabric() -> None:
    """The same in a loop of one's own."""
    fabric = Fabric(strategy="sagemaker", accelerator="cpu", devices=RANKS)
    fabric.launch()
    fabric.seed_everything(3, verbose=False)
    ranks = fabric.world_size
    with fabric.rank_zero_first():
        FOLDER.joinpath("prepared").touch()
    everyone: list[object] = [None] * ranks
    dist.all_gather_object(everyone, own("each"))
    found: dict[str, object] = {
        "setup": fabric.all_reduce(counts(dist.get_rank(), ranks), reduce_op="sum").tolist(),
        "name": fabric.broadcast(own("name")),
        "world": ranks,
        "each": everyone,
        "into": into_one(),
        "gathered": fabric.all_gather(counts(dist.get_rank(), dist.get_world_size())).tolist(),
    }
    net = torch.nn.Linear(1, 1)
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), 0.1))
    loader = DataLoader(DATA, 8 // ranks, sampler=DistributedSampler(DATA, seed=5))
    loader = fabric.setup_dataloaders(loader, use_distributed_sampler=False)
    loop = InterruptibleLoop(fabric, FOLDER / "checkpoints", {"model": model, "optimizer": optimizer})
    for _ in loop.epochs(1):
        for batch, samples in loop.batches(loader):
            note(loop.step, samples, **found)
            fabric.backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    if KIND == "fabric":
        with_fabric()
    else:
        seed_everything(3, verbose=False)
        quiet: dict[str, Any] = {
            "use_distributed_sampler": False,
            "logger": False,
            "enable_progress_bar": False,
            "enable_checkpointing": False,
        }
        strategy = SMDDPFSDPStrategy(hybrid_shard_degree=2) if KIND == "sharded" else "sagemaker"
        Trainer(strategy=strategy, accelerator="cpu", devices=RANKS, max_epochs=EPOCHS, **quiet).fit(Module())
