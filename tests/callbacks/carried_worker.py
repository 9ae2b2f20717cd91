# SPDX-License-Identifier: Apache-2.0
"""A loop with Fabric whose body takes batches of other loaders: by ``zip``, by ``next`` over epochs, and anew each time."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from tests.callbacks.loop_parts import make_loop, set_up

EPOCHS = 3


def main(folder, ranks, is_ours, stop):
    fabric, model, optimizer = set_up(ranks)
    rows = torch.randn(24 * ranks, 4, generator=torch.Generator().manual_seed(2))
    train = fabric.setup_dataloaders(DataLoader(rows, 4, shuffle=True))
    paired = fabric.setup_dataloaders(DataLoader(rows.flip(0), 4, shuffle=True, num_workers=1))
    endless = fabric.setup_dataloaders(DataLoader(rows[: 12 * ranks], 4, shuffle=True))
    val = fabric.setup_dataloaders(DataLoader(rows[: 16 * ranks], 4))
    state = {"model": model, "optimizer": optimizer}
    loop = make_loop(fabric, folder, state, is_ours)
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
