# SPDX-License-Identifier: Apache-2.0
"""A loop with Fabric whose body takes batches of other loaders: by ``zip``, by ``next`` over epochs, and anew each time."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
from lightning.fabric import Fabric, seed_everything
from torch.utils.data import DataLoader

from lightning_sagemaker import InterruptibleLoop
from tests.callbacks.passed_worker import Plain

EPOCHS = 3


def main(folder, ranks, is_ours, stop):
    torch.set_num_threads(1)
    seed_everything(1, verbose=False)
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto")
    fabric.launch()
    seed_everything(1, verbose=False)
    body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    model, optimizer = fabric.setup(body, torch.optim.SGD(body.parameters(), lr=0.05, momentum=0.9))
    rows = torch.randn(24 * ranks, 4, generator=torch.Generator().manual_seed(2))
    train = fabric.setup_dataloaders(DataLoader(rows, 4, shuffle=True))
    paired = fabric.setup_dataloaders(DataLoader(rows.flip(0), 4, shuffle=True, num_workers=1))
    endless = fabric.setup_dataloaders(DataLoader(rows[: 12 * ranks], 4, shuffle=True))
    val = fabric.setup_dataloaders(DataLoader(rows[: 16 * ranks], 4))
    state = {"model": model, "optimizer": optimizer}
    options = {"save_every": None, "overhead": 10.0}
    loop = InterruptibleLoop(fabric, folder / "checkpoints", state, **options) if is_ours else Plain()
    lines = (folder / f"rank-{fabric.global_rank}.jsonl").open("a", buffering=1)
    others = iter(endless)
    for epoch in loop.epochs(EPOCHS):
        for batch, partner in zip(loop.batches(train), paired):  # noqa: B905
            number = loop.batch
            try:
                other = next(others)
            except StopIteration:
                others = iter(endless)
                other = next(others)
            some = iter(val)  # held until the next batch, in which it begins anew
            seen = [next(some).sum().item(), next(some).sum().item()]
            loss = model(batch + partner + other).square().mean()
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            sums = [one.sum().item() for one in (batch, partner, other)]
            lines.write(json.dumps({"place": [epoch, number], "sums": sums, "seen": seen, "loss": loss.item()}) + "\n")
            if stop == [epoch, number] and fabric.global_rank == ranks - 1:
                os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "ours", json.loads(sys.argv[4]))
