# SPDX-License-Identifier: Apache-2.0
"""Three steps, and three more in another process group, with and without the buckets of the first.

``buckets_worker.py OUT_DIR`` writes ``OUT_DIR/rank-R.json``: case -> what was found.
"""

import itertools
import json
import logging
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from lightning_sagemaker._lightning import rank_zero_only
from lightning_sagemaker.collectives.buckets import bucket_layout, rebuild_as
from lightning_sagemaker.strategies.backend import load_backend

OUT, RANK, STEPS = Path(sys.argv[1]), int(os.environ["RANK"]), 6


STORE = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
COUNT = itertools.count()
KEPT: list = []
"""All wrappers: with torch 2.13 the end of one, and of its process group, may wait for a thread that waits for the GIL."""


def begin(backend: str) -> None:
    """A process group that finds nothing of the one before in its store."""
    store = dist.PrefixStore(f"group-{next(COUNT)}", STORE)
    dist.init_process_group(backend, store=store, rank=RANK, world_size=int(os.environ["WORLD_SIZE"]))


class Crossed(torch.nn.Module):
    """Layers that are used in another order than they are registered in."""

    def __init__(self, width: int = 41) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width + i % 3, width + i % 3) for i in range(9))
        self.norm = torch.nn.BatchNorm1d(width)
        self.order = [3, 0, 6, 8, 1, 4, 2, 7, 5]

    def forward(self, x):
        x = self.norm(x)
        for i in self.order:
            size = self.layers[i].in_features
            x = torch.tanh(self.layers[i](torch.nn.functional.pad(x, (0, size - x.shape[1])))) + x.mean()
        return x.square().mean()


def build(**kwargs):
    torch.manual_seed(0)
    model = DistributedDataParallel(Crossed(), **{"bucket_cap_mb": 0.01, **kwargs})
    KEPT.append(model)
    return model, torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)


def train(model, optimizer, steps) -> None:
    for step in steps:
        batch = torch.randn(8, 41, generator=torch.Generator().manual_seed(100 * step + RANK))
        loss = model(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def bits(model) -> list[str]:
    return [tensor.numpy().tobytes().hex() for tensor in model.module.state_dict().values()]


def resumed(save_after: int, backend: str, warm: bool, **kwargs) -> dict:
    """Whether a run that is resumed is the one that is not, bit for bit."""
    begin(backend)
    calm, optimizer = build(**kwargs)
    train(calm, optimizer, range(STEPS))
    first, optimizer = build(**kwargs)
    train(first, optimizer, range(save_after))
    layout = bucket_layout(first)
    saved = json.loads(json.dumps(layout)), first.module.state_dict(), optimizer.state_dict()
    dist.destroy_process_group()
    begin(backend)
    model, optimizer = build(**kwargs)
    model.module.load_state_dict(saved[1])
    optimizer.load_state_dict(saved[2])
    before, random = bits(model), torch.get_rng_state()
    gradients = [parameter.grad for parameter in model.parameters()]
    done = rebuild_as(model, saved[0]) if warm else False
    untouched = before == bits(model) and torch.equal(random, torch.get_rng_state())
    untouched &= gradients == [parameter.grad for parameter in model.parameters()]
    train(model, optimizer, range(save_after, STEPS))
    found = {"same": bits(model) == bits(calm), "done": done, "untouched": untouched, "layout": layout}
    found["later"] = bucket_layout(model) == bucket_layout(calm)
    dist.destroy_process_group()
    return found


def refused(layout, **kwargs) -> dict:
    """What is said where nothing is done; training goes on."""
    begin("gloo")
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addHandler(handler)
    hook = kwargs.pop("hook", False)
    model, optimizer = build(**kwargs)
    if hook:
        model.register_comm_hook(None, fp16_compress_hook)
    found = {"done": rebuild_as(model, layout), "said": [text for text in said if "rounding" in text]}
    train(model, optimizer, range(2))
    found["layout"] = bucket_layout(model)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").removeHandler(handler)
    dist.destroy_process_group()
    return found


def main() -> None:
    torch.set_num_threads(1)
    rank_zero_only.rank = RANK
    load_backend("smddp")
    found = {"cold": resumed(3, "gloo", False)}
    for backend in ("gloo", load_backend("smddp")):
        for steps in (0, 1, 2, 3):
            found[f"{backend}, {steps}"] = resumed(steps, backend, True)
    found["views"] = resumed(3, "gloo", True, gradient_as_bucket_view=True)
    layout = found["gloo, 3"]["layout"]
    found["hook"] = refused(layout, hook=True)
    found["unused"] = refused(layout, find_unused_parameters=True)
    found["static"] = refused(layout, static_graph=True)
    found["sizes"] = refused(layout, bucket_cap_mb=1)
    found["other"] = refused(layout[1:])
    (OUT / f"rank-{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
