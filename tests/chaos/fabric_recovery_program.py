# SPDX-License-Identifier: Apache-2.0
"""A loop of one's own with Fabric, whose rank kills itself; under ``supervise``.

``fabric_recovery_program.py FOLDER CASE.json`` writes the lines that :mod:`.recorder` writes of a Trainer.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler
from torchmetrics import MeanMetric
from torchmetrics.regression import MeanSquaredError

from lightning_sagemaker import InterruptibleLoop
from tests.chaos.recorder import _hash

EPOCHS, BATCHES, SIZE = 3, 6, 4


class Points(Dataset[Any]):
    """A smooth function of the index, with noise if it is augmented."""

    def __init__(self, size: int, noise: bool) -> None:
        self.size, self.noise = size, noise

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        x = torch.sin(torch.arange(1.0, 9) * (index + 1))
        if self.noise:
            x = x + 0.1 * torch.randn(8) + 0.1 * float(np.random.rand())
        return {"x": x, "y": x[:3].sum(), "index": index}


class Net(nn.Module):
    """Of one of the kinds of models."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        # A bias before BatchNorm has no gradient but rounding's, of which Adam would make steps.
        self.body = nn.Sequential(nn.Linear(8, 16, bias=kind != "batchnorm"), nn.ReLU(), nn.Linear(16, 1))
        if kind == "batchnorm":
            self.body.insert(1, nn.BatchNorm1d(16))
        if kind == "dropout":
            self.body.insert(2, nn.Dropout(0.3))
        if kind == "frozen":
            self.body[0].requires_grad_(False)
        self.unused = nn.Linear(2, 2) if kind == "unused" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)[:, 0]


class Run:
    """The training of a case."""

    def __init__(self, folder: Path, case: dict[str, Any]) -> None:
        self.folder, self.case = folder, case
        self.begun = sum(path.read_text().count('"strike"') for path in folder.glob("rank-*.jsonl"))
        self.seen = 0
        torch.set_num_threads(1)
        self.fabric = Fabric(
            accelerator="cpu", devices=case["ranks"], strategy="sagemaker", precision=case["precision"]
        )
        self.fabric.launch()
        self.fabric.seed_everything(3, verbose=False)
        self.number = int(os.environ["RANK"])
        self.lines = (folder / f"rank-{self.number}.jsonl").open("a", buffering=1)
        self._set_up()

    def _set_up(self) -> None:
        case, fabric = self.case, self.fabric
        self.nets = [Net(case["model"]), Net("plain")] if case["optimizer"] == "two" else [Net(case["model"])]
        make: Any = {"momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9)}.get(
            case["optimizer"], lambda p: torch.optim.Adam(p, 0.01)
        )
        both = [fabric.setup(net, make([one for one in net.parameters() if one.requires_grad])) for net in self.nets]
        self.models, self.optimizers = [one for one, _ in both], [one for _, one in both]
        self.schedules = [
            torch.optim.lr_scheduler.ReduceLROnPlateau(one, patience=0, threshold=0.5)
            if case["schedule"] == "plateau"
            else torch.optim.lr_scheduler.StepLR(one, 4 if case["schedule"] == "step" else 1000, gamma=0.7)
            for one in self.optimizers
        ]
        options: dict[str, Any] = {"num_workers": case["workers"], "persistent_workers": case["persistent"]}
        size = BATCHES * SIZE * case["ranks"] - (3 if case["data"] in ("uneven", "drop_last") else 0)
        data = Points(size, case["data"] == "augmented")
        options |= {"drop_last": case["data"] == "drop_last"}
        if case["data"] == "weighted":
            options["sampler"] = WeightedRandomSampler(torch.arange(1.0, size + 1), size)
        else:
            options["shuffle"] = True
        self.train, self.evaluated = fabric.setup_dataloaders(
            DataLoader(data, SIZE, **options), DataLoader(Points(5 * case["ranks"] + 1, False), 2)
        )
        self.error, self.mean = MeanSquaredError().to(fabric.device), MeanMetric()
        self.state: dict[str, Any] = {
            "best": 1e9,
            "values": {"none": None, "counter": 0, "list": []}.get(case["values"]),
        }
        if case["values"] == "tensor":
            self.state["values"] = torch.zeros(2)
        for number, (model, optimizer, schedule) in enumerate(
            zip(self.models, self.optimizers, self.schedules, strict=True)
        ):
            self.state |= {f"model{number}": model, f"optimizer{number}": optimizer, f"schedule{number}": schedule}
        self.loop = InterruptibleLoop(fabric, self.folder / "checkpoints", self.state, save_every=None)

    def reach(self, phase: str) -> None:
        """Die here, if it is the place."""
        case = self.case
        target = 0 if case["to"] == "rank0" else case["ranks"] - 1
        if phase != case["phase"] or self.begun > int(case["again"]) or (self.begun == 0 and self.number != target):
            return
        self.seen += 1
        if self.seen == (case["at"] if self.begun == 0 else 1):
            self.write("strike", phase=phase)
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, kind: str, **values: Any) -> None:
        self.lines.write(json.dumps({"kind": kind, **values}) + "\n")

    def states(self) -> dict[str, Any]:
        found = {"parameters": [dict(net.named_parameters()) for net in self.nets]}
        found["buffers"] = [dict(net.named_buffers()) for net in self.nets]
        found["optimizers"] = [one.state_dict() for one in self.optimizers]
        return {name: _hash(one) for name, one in found.items()}

    def values(self) -> Any:
        value = self.state["values"]
        return value.tolist() if isinstance(value, torch.Tensor) else value

    # The loop

    def train_all(self) -> None:
        for epoch in self.loop.epochs(EPOCHS):
            self.reach("epoch_start")
            for model in self.models:
                model.train()
            for batch in self.loop.batches(self.train, self.case["every"]):
                self.train_batch(batch)
            if self.case["schedule"] == "step":
                self._step_schedules()
            if self.case["val"] != "none":
                self.validate()
            self.reach("epoch_end")
            rates = [group["lr"].hex() for one in self.optimizers for group in one.param_groups]
            drawn = [torch.rand(1).item(), float(np.random.rand())]
            schedules = [one.state_dict() for one in self.schedules]
            self.write(
                "epoch",
                epoch=epoch,
                step=self.loop.step,
                rates=rates,
                drawn=drawn,
                metrics={},
                schedules=[_plain(one) for one in schedules],
                values=self.values(),
                best=float(self.state["best"]).hex(),
            )
            if self.case["saves"] == "epoch":
                self.loop.save()
                self.reach("saved")
        self.write("end", step=self.loop.step, **self.states(), values=self.values())

    def _step_schedules(self) -> None:
        for one in self.schedules:
            one.step()

    def train_batch(self, batch: dict[str, Any]) -> None:
        case, fabric, loop = self.case, self.fabric, self.loop
        self.reach("batch")
        number, every = loop.batch, case["every"]
        steps = (number + 1) % every == 0 or number + 1 == len(self.train)
        if case["zero"] == "begin" and number % every == 0:
            self._zero()
        with ExitStack() as stack:
            for model in self.models:
                stack.enter_context(fabric.no_backward_sync(model, enabled=not steps and case["sync"] == "last"))
            losses = [self._loss(model, batch) for model in self.models]
            loss = torch.stack(losses).sum()
            self.reach("forward")
            if case["backwards"] == 2 and len(losses) == 1:
                losses.append(0.1 * self._loss(self.models[0], batch))
            for one in losses if case["backwards"] == 2 else [loss]:
                fabric.backward(one / every)
        self.reach("backward")
        logged = self._log(loss.detach(), batch)
        self._count(batch)
        if steps:
            self._step()
        line = {"epoch": loop.epoch, "batch": number, "ids": batch["index"].tolist(), "loss": loss.item().hex()}
        if not loop.discarded:
            line |= {"step": loop.step, "metrics": logged, "values": self.values()}
            line |= self.states() if steps else {}
        if not loop.steps.fails:  # else the step is repeated
            self.write("batch", **line)
        if case["val"] == "half" and number == BATCHES // 2 - 1:
            self.validate()
        if case["saves"] == "batch" and number == 2:
            loop.save()

    def _loss(self, model: Any, batch: dict[str, Any]) -> torch.Tensor:
        errors = (model(batch["x"]).float() - batch["y"]).square()
        if self.case["collective"] == "normalized":
            total = self.fabric.all_reduce(torch.tensor(float(len(errors))), reduce_op="sum")
            return errors.sum() / total * self.case["ranks"]
        if self.case["collective"] == "contrastive":
            everybody = self.fabric.all_gather(errors.detach().mean())
            return errors.mean() * (1 + everybody.sum())
        return errors.mean()

    def _log(self, loss: torch.Tensor, batch: dict[str, Any]) -> dict[str, str]:
        kind, fabric = self.case["collective"], self.fabric
        if kind == "mean":
            return {
                "mean": fabric.all_reduce(loss).item().hex(),
                "sum": fabric.all_reduce(loss, reduce_op="sum").item().hex(),
            }
        if kind == "gather":
            return {"gathered": fabric.all_gather(loss).double().sum().item().hex()}
        if kind == "barrier":
            fabric.barrier()
        if kind == "metric":
            self.mean.reset()
            self.mean.update(loss)
            return {"mean": self.mean.compute().item().hex()}
        if kind == "broadcast":
            return {"sent": float(fabric.broadcast(self.loop.batch)).hex()}
        return {}

    def _count(self, batch: dict[str, Any]) -> None:
        kind = self.case["values"]
        if kind == "counter":
            self.state["values"] += len(batch["index"])
        if kind == "list":
            self.state["values"].append(self.loop.step)
        if kind == "tensor":
            self.state["values"] += 1

    def _step(self) -> None:
        case, fabric = self.case, self.fabric
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            if case["clip"] == "norm":
                fabric.clip_gradients(model, optimizer, max_norm=0.5)
            if case["clip"] == "value":
                fabric.clip_gradients(model, optimizer, clip_val=0.05)
            if case["clip"] == "torch":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        self.reach("stepped")
        if case["schedule"] == "batch":
            self._step_schedules()
        if case["zero"] != "begin":
            self._zero()

    def _zero(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=self.case["zero"] != "keep")

    def validate(self) -> None:
        kind = self.case["evaluates"]
        found = self._evaluate() if kind == "loose" else self.loop.collective(self._evaluate)
        if found is None or self.loop.discarded:
            return
        ids, result = found
        self.state["best"] = min(self.state["best"], result)
        if self.case["schedule"] == "plateau":
            for one in self.schedules:
                one.step(result)
        place = {"epoch": self.loop.epoch, "batch": self.loop.batch, "step": self.loop.step}
        self.write("validation", **place, ids=ids, metrics={"val": float(result).hex()})

    def _evaluate(self) -> tuple[list[list[int]], float]:
        model, sums, ids = self.models[0], torch.zeros(2), []
        was = model.training
        model.eval()
        self.error.reset()
        with torch.no_grad():
            for batch in self.loop.evaluation(self.evaluated):
                self.reach("evaluation")
                found = model(batch["x"]).float()
                self.error.update(found, batch["y"])
                sums += torch.tensor([(found - batch["y"]).square().sum(), len(found)])
                ids.append(batch["index"].tolist())
        model.train(was)
        self.reach("evaluated")
        if self.case["evaluates"] == "torchmetrics":
            return ids, self.error.compute().item()
        sums = self.fabric.all_reduce(sums, reduce_op="sum")
        return ids, (sums[0] / sums[1]).item()


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    return {name: str(state[name]) for name in ("last_epoch", "num_bad_epochs", "best") if name in state}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with (folder / "sessions").open("a") as file:
        file.write(f"{os.getsid(0)}\n")
    Run(folder, json.loads(Path(sys.argv[2]).read_text())).train_all()
    (folder / "done").touch()
