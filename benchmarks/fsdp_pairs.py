# SPDX-License-Identifier: Apache-2.0
"""What the process group of ``"smddp_fsdp"`` costs FSDP2's step, in pairs of steps within the same two processes.

    python benchmarks/fsdp_pairs.py --steps 300

Runs that are launched one after the other (``fsdp.py``) differ by several percent on a shared machine. Here three copies
of one model train in turn, in an order that is drawn for each step: two are sharded over gloo's groups, which says how
large a difference between equals is, and one over SMDDP's. What Lightning's strategies do around a step is not included.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import subprocess
import time

from launching import torchrun  # beside this file

_CONTROL, _GLOO, _OURS = "gloo, another group", "gloo", "smddp_fsdp's group"
_WARMUP = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="measured steps of each model")
    parser.add_argument("--width", type=int, default=1024, help="width of the model's layers")
    parser.add_argument("--blocks", type=int, default=4, help="layers of the model")
    parser.add_argument("--batch", type=int, default=96, help="samples per process and step")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        measure(arguments)
    else:
        sizes = [f"--{name}={getattr(arguments, name)}" for name in ("steps", "width", "blocks", "batch")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*torchrun("cpu"), __file__, "--worker", *sizes], check=True, env=environment)


def measure(arguments: argparse.Namespace) -> None:
    """Train the three models, and print how the steps of two compare with those of the third."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from lightning_sagemaker.collectives import gathering
    from lightning_sagemaker.strategies.backend import load_backend

    load_backend("smddp")
    gathering.register(lambda *_: None)  # all gathers are SMDDP's
    dist.init_process_group(gathering.GATHERING_BACKEND)
    ours, rank = init_device_mesh("cpu", (dist.get_world_size(),)), dist.get_rank()
    meshes = {name: DeviceMesh.from_group(dist.new_group(backend="gloo"), "cpu") for name in (_GLOO, _CONTROL)}
    batch = torch.randn(arguments.batch, arguments.width)

    def build(mesh: DeviceMesh) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        net = torch.nn.Sequential(*(torch.nn.Linear(arguments.width, arguments.width) for _ in range(arguments.blocks)))
        for unit in [*net, net]:
            fully_shard(unit, mesh=mesh)
        return net, torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
        begin = time.perf_counter()
        net(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - begin

    sides = {name: build(mesh) for name, mesh in {**meshes, _OURS: ours}.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    order, drawn = list(sides), random.Random(0)  # the same on both ranks
    for number in range(_WARMUP + arguments.steps):
        drawn.shuffle(order)
        for name in order:
            seconds = step(*sides[name])
            if number >= _WARMUP:
                times[name].append(seconds)
    if rank == 0:
        for name in (_CONTROL, _OURS):
            report(name, times[name], times[_GLOO])
        print(f"{gathering.TRAFFIC}")
    dist.barrier()


def report(name: str, times: list[float], others: list[float]) -> None:
    """Print the mean ratio of pairs of steps, with twice its standard error."""
    logs = [math.log(one / other) for one, other in zip(times, others, strict=True)]
    ratio, error = math.exp(statistics.mean(logs)), 2 * statistics.stdev(logs) / math.sqrt(len(logs))
    medians = f"{1e3 * statistics.median(times):.1f} ms against {1e3 * statistics.median(others):.1f} ms"
    print(f"{name:<20} / {_GLOO}: {ratio:.4f} +- {error:.4f} ({medians})", flush=True)


if __name__ == "__main__":
    main()
