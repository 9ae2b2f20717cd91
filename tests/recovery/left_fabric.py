# SPDX-License-Identifier: Apache-2.0
"""A loop with Fabric that leaves each epoch by ``break``, saves, and whose ranks all end once after that."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

import lightning_sagemaker
from lightning_sagemaker import InterruptibleLoop

EPOCHS, BATCHES = 3, 3


def main(folder, ends):
    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", strategy="sagemaker")
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    body = torch.nn.Linear(4, 1)
    model, optimizer = fabric.setup(body, torch.optim.SGD(body.parameters(), 0.1))
    rows = torch.randn(64, 4, generator=torch.Generator().manual_seed(2))
    loader = fabric.setup_dataloaders(DataLoader(rows, 4, shuffle=True))
    state = {"model": model, "optimizer": optimizer, "epochs": 0}
    loop = InterruptibleLoop(fabric, folder / "checkpoints", state, save_every=None)
    with (folder / f"rank-{os.environ['RANK']}.jsonl").open("a", buffering=1) as lines:
        for epoch in loop.epochs(EPOCHS):
            for batch in loop.batches(loader):
                number = loop.batch
                loss = model(batch).square().mean()
                fabric.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                lines.write(json.dumps([epoch, number, batch.sum().item(), loss.item()]) + "\n")
                if number == BATCHES - 1 and not loop.discarded:
                    break
            state["epochs"] += 1
            draw = torch.rand(()).item()
            loop.save()
            ended = folder / f"ended-{os.environ['RANK']}"
            if ends and epoch == 1 and not ended.exists():
                ended.touch()
                os._exit(1)
            lines.write(json.dumps([epoch, "end", state["epochs"], draw]) + "\n")


if __name__ == "__main__":
    assert lightning_sagemaker.__version__
    main(Path(sys.argv[1]), sys.argv[2] == "ends")
