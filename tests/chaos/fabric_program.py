# SPDX-License-Identifier: Apache-2.0
"""A loop of one's own with Fabric: with InterruptibleLoop, or without, as the run that is the reference."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import torch
from lightning.fabric import Fabric, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset

import lightning_sagemaker
from lightning_sagemaker import InterruptibleLoop

EPOCHS, BATCHES = 3, 6


class Numbers(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return {"x": torch.sin(torch.arange(1.0, 5) * (index + 1)) + 0.1 * torch.rand(4), "index": index}


class Plain:
    """The same loop without us."""

    def __init__(self, case):
        self.epoch = self.batch = 0

    def epochs(self, count):
        for self.epoch in range(count):
            yield self.epoch

    def batches(self, loader, every=1):
        for self.batch, batch in enumerate(loader):
            yield batch

    def evaluation(self, loader):
        yield from loader


def digest(*modules):
    parts = [value for module in modules for value in module.state_dict().values()]
    return hashlib.sha256(b"".join(part.detach().numpy().tobytes() for part in parts)).hexdigest()[:16]


def parameters_of(average):
    return [] if average is None else [parameter.detach() for parameter in average.parameters()]


def main(folder, case, start):
    torch.set_num_threads(1)
    seed_everything(1, verbose=False)
    torch.rand(3)  # drawn before the processes meet: DDP of Fabric does not seed anew there
    fabric = Fabric(accelerator="cpu", devices=case["ranks"], strategy=case["strategy"])
    fabric.launch()
    body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(body.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    model, optimizer = fabric.setup(body, optimizer)
    options = {"num_workers": case["workers"], "persistent_workers": case["persistent"]}
    size = BATCHES * case["batch_size"] * case["ranks"] if start == 0 or not case.get("then") else case["size"]
    train = fabric.setup_dataloaders(DataLoader(Numbers(size), case["batch_size"], shuffle=True, **options))
    evaluated = fabric.setup_dataloaders(DataLoader(Numbers(4 * case["ranks"]), 2))
    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "best": 1e9}
    if case["averages"]:
        state["average"] = copy.deepcopy(body)
    loop = InterruptibleLoop(fabric, folder / "checkpoints", state, save_every=None) if case["ours"] else Plain(case)
    lines = (folder / f"rank-{fabric.global_rank}.jsonl").open("a", buffering=1)

    def write(place, **facts):
        lines.write(json.dumps({"place": [loop.epoch, *place], **facts}) + "\n")

    def reach(*place):
        strike = case["strike"] if start == 0 and case["ours"] else None
        if strike and list(place) == strike["at"] and fabric.global_rank == strike["rank"] % case["ranks"]:
            os.kill(os.getpid(), signal.Signals[strike["signal"]])

    for epoch in loop.epochs(EPOCHS):
        model.train()
        for batch in loop.batches(train, every=case["every"]):
            number = loop.batch
            loss = model(batch["x"]).square().mean()
            fabric.backward(loss / case["every"])
            reach("batch", epoch, number)
            if (number + 1) % case["every"] == 0:
                optimizer.step()
                optimizer.zero_grad()
                for mean, parameter in zip(parameters_of(state.get("average")), body.parameters(), strict=False):
                    mean.lerp_(parameter.detach(), 0.2)
            if number == 2:
                with torch.no_grad():
                    for other in loop.evaluation(evaluated):
                        model(other["x"])
            write(["batch", number], ids=batch["index"].tolist(), loss=loss.item(), hash=digest(body))
            if case["ours"] and case.get("saves") == [epoch, number]:
                loop.save()
        schedule.step()
        model.eval()
        total = torch.zeros(())
        own = [parameter.detach().clone() for parameter in body.parameters()]
        for mean, parameter in zip(parameters_of(state.get("average")), body.parameters(), strict=False):
            parameter.data.copy_(mean)
        with torch.no_grad():
            for batch in loop.evaluation(train if case["same"] else evaluated):
                reach("evaluation", epoch)
                total += model(batch["x"]).square().sum()
        for parameter, before in zip(body.parameters(), own, strict=True):
            parameter.data.copy_(before)
        state["best"] = min(state["best"], fabric.all_reduce(total, reduce_op="sum").item())
        reach("epoch", epoch)
        rate = optimizer.param_groups[0]["lr"]
        write(["epoch"], best=state["best"], rate=rate, hash=digest(body), draw=torch.rand(1).item())
        if case["ours"] and case.get("saves") == [epoch, "end"]:
            loop.save()
    if fabric.is_global_zero:
        (folder / "done").touch()


if __name__ == "__main__":
    assert lightning_sagemaker.__version__
    place, case, start = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
    main(place, case | (case.get("then") or {} if start else {}), start)
