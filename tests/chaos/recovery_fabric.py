# SPDX-License-Identifier: Apache-2.0
"""The training of :mod:`.recovery_training` as a loop of one's own with Fabric, which notes the same facts."""

from __future__ import annotations

import json
import random
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

sys.path.insert(0, str(Path(__file__).parents[2]))
from lightning_sagemaker import InterruptibleLoop
from tests.chaos import device_error
from tests.chaos.recovery_training import PLACE, RANK, Points, checksum, options_of_script

KINDS = {"adamw": torch.optim.AdamW, "sgd": partial(torch.optim.SGD, momentum=0.9)}


def main() -> None:
    """Train."""
    options = options_of_script()
    fabric = Fabric(strategy=options.strategy, **PLACE)
    fabric.launch()
    fabric.seed_everything(7, verbose=False)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(options.dropout), nn.Linear(64, 4))
    if options.norm:
        net.insert(1, nn.BatchNorm1d(64))
    model, optimizer = fabric.setup(net, KINDS[options.optimizer](net.parameters(), lr=1e-2))
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    training = DataLoader(Points(options.samples), 8, shuffle=True, num_workers=options.workers)
    training, validation = fabric.setup_dataloaders(training, DataLoader(Points(200), 8))
    accuracy = MulticlassAccuracy(4).to(fabric.device)
    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "best": 1e9, "seen": 0}
    loop = InterruptibleLoop(fabric, options.folder / "checkpoints", state)
    every, half = options.accumulate, len(training) // 2 // options.accumulate * options.accumulate

    def note(*row: Any) -> None:
        if fabric.is_global_zero:
            with (options.folder / "steps.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")

    def evaluate() -> list[float]:
        model.eval()
        accuracy.reset()
        total, number = torch.zeros((), device=fabric.device), 0
        with torch.no_grad():
            for x, y, _ in loop.evaluation(validation):
                time.sleep(options.pause / 2)
                output = model(x)
                accuracy.update(output, y)
                total, number = total + nn.functional.cross_entropy(output, y, reduction="sum"), number + len(y)
        model.train()
        both = fabric.all_reduce(torch.stack([total, torch.full_like(total, number)]), reduce_op="sum")
        return [(both[0] / both[1]).item(), both[1].item(), accuracy.compute().item()]

    def validate() -> None:
        found = loop.collective(evaluate)
        if found is not None:
            state["best"] = min(state["best"], found[0])
            schedule.step(found[0])
            note("validation", loop.step, *found, state["best"], state["seen"])

    for _ in loop.epochs(options.epochs):
        for x, y, indices in loop.batches(training, every):
            time.sleep(options.pause)
            device_error.may_happen(options.folder, "forward")
            loss = nn.functional.cross_entropy(model(x), y)
            device_error.may_happen_backward(options.folder, loss)
            row = {
                "epoch": loop.epoch,
                "batch": loop.batch,
                "step": loop.step,
                "samples": indices.tolist(),
                "loss": loss.item(),
                "weights": checksum(net),
                "random": [random.random(), float(np.random.rand())],
            }
            with (options.folder / f"rank-{RANK}.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            steps = (loop.batch + 1) % every == 0 or loop.batch + 1 == len(training)
            with fabric.no_backward_sync(model, enabled=not steps):
                fabric.backward(loss / every)
            state["seen"] += len(y)
            if steps:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                device_error.may_happen(options.folder, "optimizer")
                optimizer.step()
                optimizer.zero_grad()
                if not loop.discarded:
                    note("step", loop.step, time.time())
            if loop.batch + 1 == half:
                validate()
        validate()
    torch.save(net.state_dict(), options.folder / f"weights-{RANK}.pt")


if __name__ == "__main__":
    main()
