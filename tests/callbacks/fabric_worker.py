# SPDX-License-Identifier: Apache-2.0
"""A loop with Fabric whose ``state`` has more than modules and numbers, or the same loop without us: the reference."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections import defaultdict, deque
from pathlib import Path

import numpy as np
import torch
import torchmetrics
from lightning.fabric import Fabric, seed_everything
from torch import nn
from torch.utils.data import DataLoader

from lightning_sagemaker import InterruptibleLoop

EPOCHS = 3


class Plain:
    """The same loop without us."""

    def __init__(self):
        self.epoch = self.batch = 0

    def epochs(self, count):
        for self.epoch in range(count):
            yield self.epoch

    def batches(self, loader):
        for self.batch, batch in enumerate(loader):
            yield batch

    def evaluation(self, loader):
        yield from loader


class Meter:
    """Of a script's own, with a state that is no plain data."""

    def __init__(self):
        self.recent = deque(maxlen=4)

    def state_dict(self):
        return {"recent": self.recent}

    def load_state_dict(self, state):
        self.recent = state["recent"]


def made(rank):
    """What ``state`` has, apart from what Fabric sets up: generators and metrics are each rank's, values rank zero's."""
    return {
        "metrics": torchmetrics.MetricCollection([torchmetrics.MeanMetric(), torchmetrics.MaxMetric()]),
        "all": torchmetrics.CatMetric(),
        "noise": torch.Generator().manual_seed(rank),
        "numpy": np.random.default_rng(rank),
        "python": random.Random(rank),
        "recent": deque(maxlen=3),
        "counts": defaultdict(int),
        "best": 1e9,
        "history": np.zeros(2),
        "meter": Meter(),
    }


def main(folder, ranks, is_ours, stop):
    torch.set_num_threads(1)
    seed_everything(1, verbose=False)
    strategy = "ddp_find_unused_parameters_true" if ranks > 1 else "auto"
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy=strategy)
    fabric.launch()
    seed_everything(1, verbose=False)
    body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    plateau = torch.optim.SGD(body.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(plateau, patience=0)
    model, optimizer = fabric.setup(body, plateau)
    order = torch.Generator().manual_seed(7)
    rows = torch.randn(24 * ranks, 4, generator=torch.Generator().manual_seed(2))
    train = fabric.setup_dataloaders(DataLoader(rows, 4, shuffle=True, generator=order))
    val = fabric.setup_dataloaders(DataLoader(rows[: 8 * ranks], 4))
    state = {"model": model, "optimizer": optimizer, "schedule": schedule, **made(fabric.global_rank)}
    recent, noise = state["recent"], state["noise"]  # the loop does not replace them
    loop = InterruptibleLoop(fabric, folder / "checkpoints", state, save_every=None) if is_ours else Plain()
    lines = (folder / f"rank-{fabric.global_rank}.jsonl").open("a", buffering=1)

    def reach(*place):
        if stop == [*place] and fabric.global_rank == ranks - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    for epoch in loop.epochs(EPOCHS):
        for batch in loop.batches(train):
            drawn = torch.randn(batch.shape, generator=noise)
            loss = model(batch + 0.1 * drawn + state["numpy"].random() + state["python"].random()).square().mean()
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            state["metrics"].update(loss.detach())
            state["all"].update(loss.detach())
            mean = fabric.all_reduce(loss.detach()).item()
            recent.append(mean)
            state["meter"].recent.append(mean)
            state["counts"][f"epoch {epoch}"] += 1
            reach("batch", epoch, loop.batch)
            place = [epoch, "batch", loop.batch]
            lines.write(json.dumps({"place": place, "sum": batch.sum().item(), "loss": loss.item()}) + "\n")
        found = {name: value.item() for name, value in state["metrics"].compute().items()}
        collected = state["all"].compute().sum().item()
        state["metrics"].reset()
        state["all"].reset()
        model.eval()
        body[0].requires_grad_(epoch == 1)
        total = 0.0
        for batch in loop.evaluation(val):
            state["all"].update(model(batch).detach().square().mean())
            recent.append(total)
            torch.rand((), generator=noise)
            state["numpy"].random()
            reach("evaluation", epoch)
            total += fabric.all_reduce(model(batch).square().sum(), reduce_op="sum").item()
        state["history"] = np.append(state["history"], total)
        state["best"] = min(state["best"], state["history"][-1])
        schedule.step(state["best"])
        model.train()
        if epoch == 1:
            body[1].eval()
        reach("epoch", epoch)
        lines.write(
            json.dumps(
                {
                    "place": [epoch, "end"],
                    "metrics": found,
                    "all": [collected, state["all"].compute().sum().item()],
                    "recent": [*recent],
                    "meter": [*state["meter"].recent],
                    "counts": state["counts"],
                    "best": [state["best"], type(state["best"]).__name__, *state["history"].tolist()],
                    "rate": optimizer.param_groups[0]["lr"],
                    "modes": [one.training for one in (model, body, body[1])],
                    "frozen": not body[0].weight.requires_grad,
                    "draws": [
                        torch.rand((), generator=noise).item(),
                        state["numpy"].random(),
                        state["python"].random(),
                        torch.rand((), generator=order).item(),
                    ],
                }
            )
            + "\n"
        )
        state["all"].reset()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "ours", json.loads(sys.argv[4]))
