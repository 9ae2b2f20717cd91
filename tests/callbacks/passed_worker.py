# SPDX-License-Identifier: Apache-2.0
"""A loop with Fabric whose epochs iterate over two loaders, the second left by ``break``; or without us: the reference."""

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
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    rows = torch.randn(20 * ranks, 4, generator=torch.Generator().manual_seed(2))
    train = fabric.setup_dataloaders(DataLoader(rows, 4, shuffle=True))
    other = fabric.setup_dataloaders(DataLoader(rows.flip(1), 4, shuffle=True))
    val = fabric.setup_dataloaders(DataLoader(rows[: 8 * ranks], 4))
    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "level": 0, "seen": []}
    loop = make_loop(fabric, folder, state, is_ours)
    lines = (folder / f"rank-{fabric.global_rank}.jsonl").open("a", buffering=1)

    def write(*place, **facts):
        lines.write(json.dumps({"place": place, **facts}) + "\n")
        if stop == [*place] and fabric.global_rank == ranks - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    for epoch in loop.epochs(EPOCHS):
        schedule.step()
        state["level"] += 1
        seen = state["seen"]
        seen.clear()
        for part in ("first", "second"):
            for batch in loop.batches(train if part == "first" else other):
                number = loop.batch
                loss = model(batch).square().mean()
                fabric.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                seen.append(number)
                rate = optimizer.param_groups[0]["lr"]
                write(epoch, part, number, loss=loss.item(), sum=batch.sum().item(), rate=rate, level=state["level"])
                if part == "second" and number == 2:
                    break
            schedule.step()
        with torch.no_grad():
            for number, batch in enumerate(loop.evaluation(val)):
                write(epoch, "evaluation", number, loss=model(batch).square().mean().item())
        write(epoch, "end", seen=[*seen], weights=sum(one.double().sum().item() for one in model.parameters()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "ours", json.loads(sys.argv[4]))
