# SPDX-License-Identifier: Apache-2.0
"""A loop with Fabric whose epochs begin with code that draws the samples and builds the loader from ``state``."""

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
    rows = torch.randn(40 * ranks, 4, generator=torch.Generator().manual_seed(2))
    val = fabric.setup_dataloaders(DataLoader(rows[: 8 * ranks], 4))
    own = torch.Generator().manual_seed(5)
    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "own": own, "level": 0, "history": []}
    loop = make_loop(fabric, folder, state, is_ours)
    lines = (folder / f"rank-{fabric.global_rank}.jsonl").open("a", buffering=1)

    def write(*place, **facts):
        lines.write(json.dumps({"place": place, **facts}) + "\n")
        if stop == [*place] and place[1] == "end":
            loop._votes.stops = True  # as after the signal of another rank, of which the last exchange has told
        elif stop == [*place] and fabric.global_rank == ranks - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    for epoch in loop.epochs(EPOCHS):
        state["level"] += 1
        state["history"].append(epoch)
        schedule.step()
        drawn = torch.randperm(len(rows) // 2)[: 4 * ranks]  # by the global generator, and by one in ``state``
        others = len(rows) // 2 + torch.randperm(len(rows) // 2, generator=own)[: 4 * ranks * state["level"]]
        rate = optimizer.param_groups[0]["lr"]
        write(epoch, "begin", level=state["level"], history=[*state["history"]], rate=rate, drawn=drawn.tolist())
        for number, batch in enumerate(loop.evaluation(val)):
            write(epoch, "before", number, sum=batch.sum().item())
        train = fabric.setup_dataloaders(DataLoader(rows[torch.cat([drawn, others])], 2, shuffle=True))
        held = loop.batches(train)  # not freed by ``break``
        for batch in held:
            number = loop.batch
            loss = model(batch).square().mean()
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            write(epoch, "batch", number, loss=loss.item(), level=state["level"], rate=optimizer.param_groups[0]["lr"])
            if number == 3:
                break
        if is_ours and epoch == 1:
            loop.save()
        state["history"].append("end")
        write(epoch, "end", weights=sum(one.double().sum().item() for one in model.parameters()), step=loop.step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "ours", json.loads(sys.argv[4]))
