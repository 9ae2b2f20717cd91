# SPDX-License-Identifier: Apache-2.0
"""A scenario of worker.py: ``torch.compile`` inside and around DDP's wrapper, with Fabric and without."""

import os

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from torch.nn.parallel import DistributedDataParallel

WAYS = ("fabric_around_compiled", "compiled_around_fabric", "ddp_around_compiled", "compiled_around_ddp")
STEPS = 3
"""DDP builds its buckets anew in the second."""


def compiled(strategy: str) -> dict:
    """Losses and weights after each step, by compiler and way."""
    backends = os.environ.get("COMPILERS", "aot_eager").split(",")
    devices = {"devices": dist.get_world_size()} if strategy == "ddp" else {}
    fabric = Fabric(strategy=strategy, accelerator="cpu", **devices)
    fabric.launch()
    return {backend: {way: _train(fabric, backend, way) for way in WAYS} for backend in backends}


def _train(fabric: Fabric, backend: str, way: str) -> list[list[float]]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inner = torch.compile(net, backend=backend) if way.endswith("around_compiled") else net
    if "fabric" in way:
        model, optimizer = fabric.setup(inner, optimizer)
    else:
        model = DistributedDataParallel(inner)
    if way.startswith("compiled"):
        model = torch.compile(model, backend=backend)
    rows = []
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(10 * step + dist.get_rank())
        loss = model(torch.randn(5, 4, generator=draw)).square().mean()
        fabric.backward(loss) if "fabric" in way else loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        rows.append([float(loss), *torch.cat([p.detach().flatten() for p in net.parameters()]).tolist()])
    return rows
