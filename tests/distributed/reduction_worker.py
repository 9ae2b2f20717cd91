# SPDX-License-Identifier: Apache-2.0
"""Vectors and DDP's gradients, reduced in each way, on processes that stand for those of several hosts.

``reduction_worker.py OUT_DIR PROCESSES_PER_HOST`` writes ``OUT_DIR/rank-R.json``: case -> what was found.
"""

import copy
import gc
import hashlib
import io
import json
import logging
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lightning_sagemaker.collectives.buckets import bucket_layout, rebuild_as
from lightning_sagemaker.collectives.reduction.choice import VectorAsBucket
from lightning_sagemaker.collectives.reduction.engine import Engine
from lightning_sagemaker.collectives.reduction.hook import Reducer, attach
from lightning_sagemaker.collectives.reduction.options import ReductionOptions
from lightning_sagemaker.collectives.reduction.plan import Plan
from lightning_sagemaker.collectives.reduction.topology import Groups, Topology

sys.path.insert(0, str(Path(__file__).parent))
from place import BACKEND, DEVICE

OUT, PER_HOST, RANK = Path(sys.argv[1]), int(sys.argv[2]), int(os.environ["RANK"])
STEPS = 8
KEPT: list = []


def bits(*tensors) -> str:
    return hashlib.sha256(b"".join(tensor.detach().cpu().numpy().tobytes() for tensor in tensors)).hexdigest()


def vector(length: int, rank: int, dtype=torch.float32):
    return torch.randn(length, generator=torch.Generator().manual_seed(rank)).to(DEVICE, dtype)


def vectors(groups: Groups) -> dict:
    """The worst error of each plan against the mean in float64, in units of the mean of the absolute numbers."""
    found = {}
    world = dist.get_world_size()
    for algorithm in ("flat",) if groups.topology.obstacle else ("flat", "hierarchical"):
        for compression in (None, "bf16", "fp16"):
            reducer = Reducer(Plan(algorithm, compression, 4096), groups, DEVICE)
            for dtype in (torch.float32, torch.float64, torch.bfloat16):
                worst, seen = 0.0, []
                for length in (1, world, 1023, 10_000):
                    parts = [vector(length, rank, dtype).double() for rank in range(world)]
                    mean, scale = sum(parts) / world, sum(part.abs() for part in parts) / world
                    own = vector(length, RANK, dtype)
                    returned = reducer.reduce(own).wait()
                    assert returned is own or returned.data_ptr() == own.data_ptr()
                    worst = max(worst, ((own.double() - mean).abs() / scale).max().item())
                    seen.append(bits(own.double()))
                found[f"{algorithm}, {compression}, {dtype}"] = {"worst": worst, "bits": seen}
    return found


def placed(groups: Groups) -> bool:
    """Whether the result of a number does not depend on where it stands and with what it is sent."""
    whole = vector(10_000, RANK)
    results = []
    for piece, order in ((512, 1), (2**20, 1), (4096, -1)):
        algorithm = "flat" if groups.topology.obstacle else "hierarchical"
        own = whole.flip(0).contiguous() if order < 0 else whole.clone()
        Reducer(Plan(algorithm, "bf16" if groups.topology.obstacle else None, piece), groups, DEVICE).reduce(own).wait()
        results.append(bits(own.flip(0).contiguous() if order < 0 else own))
    return len(set(results)) == 1


class Net(torch.nn.Module):
    """Layers that are used in another order than they are registered in, one of them not always."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(48, 48) for _ in range(6))
        self.norm = torch.nn.BatchNorm1d(48)
        self.order = [3, 0, 5, 1, 4, 2]

    def forward(self, x, leave_out=None):
        x = self.norm(x)
        for number in self.order:
            if number != leave_out:
                x = x + torch.tanh(self.layers[number](x))
        return (x - 0.3).square().mean()


def build(reducer, **kwargs):
    torch.manual_seed(0)
    ddp = DistributedDataParallel(Net().to(DEVICE), **{"bucket_cap_mb": 0.02, **kwargs})
    KEPT.append(ddp)
    if reducer is not None:
        attach(ddp, reducer)
    return ddp, torch.optim.SGD(ddp.parameters(), 0.3, momentum=0.5)


def train(ddp, optimizer, steps, accumulate=1, leave_out=None, call=None) -> list[float]:
    losses = []
    for step in steps:
        optimizer.zero_grad()
        for part in range(accumulate):
            seed = 1000 * step + 10 * part + RANK
            batch = torch.randn(8, 48, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
            ddp.require_backward_grad_sync = part + 1 == accumulate
            loss = (ddp if call is None else call)(batch, leave_out=leave_out if step % 2 else None)
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def trained(reducer, leave_out=None, accumulate=1, compiled=False, **kwargs) -> dict:
    ddp, optimizer = build(reducer, **kwargs)
    call = torch.compile(ddp, backend="eager") if compiled else ddp
    losses = train(ddp, optimizer, range(STEPS), accumulate, leave_out, call)
    parameters = list(ddp.module.parameters())
    return {"losses": losses, "bits": bits(*parameters)}


SITUATIONS = {
    "plain": {},
    "accumulated": {"accumulate": 3},
    "unused": {"leave_out": 1, "find_unused_parameters": True},
    "static": {"static_graph": True},
    "views": {"gradient_as_bucket_view": True},
    "compiled": {"compiled": True, "bucket_cap_mb": 2},
}
EVERYWHERE = (("hierarchical", None), ("hierarchical", "bf16"), ("flat", "powersgd"))
ONCE = (("hierarchical", "fp16"), ("flat", "bf16"), ("hierarchical", "powersgd"))


def ways(make) -> dict:
    """DDP's gradients, by way and what else is asked of DDP."""
    found = {}
    for name, situation in SITUATIONS.items():
        found[f"ddp, {name}"] = trained(None, **situation)
        for reduction, compression in (*EVERYWHERE, *(ONCE if name == "plain" else ())):
            reducer = make(reduction, compression).reducer
            found[f"{reduction}, {compression}, {name}"] = trained(reducer, **situation)
    return found


def resumed(make) -> dict:
    """Whether a run that is resumed after three steps is the one that is not, bit for bit."""
    found = {}
    for reduction, compression in (("hierarchical", None), ("flat", "bf16"), ("flat", "powersgd")):
        calm, optimizer = build(make(reduction, compression).reducer)
        losses = train(calm, optimizer, range(STEPS))
        one = make(reduction, compression)
        first, optimizer = build(one.reducer)
        train(first, optimizer, range(4))
        layout = bucket_layout(first)
        kept = {"weights": first.module.state_dict(), "optimizer": optimizer.state_dict(), "layout": layout}
        if compression == "powersgd":
            kept["errors"] = one.reducer.state_dict(list(first.parameters()))
        file = io.BytesIO()
        torch.save(kept, file)
        file.seek(0)
        kept = torch.load(file, weights_only=True)
        for warm in (False, True):
            other = make(reduction, compression)
            ddp, optimizer = build(other.reducer)
            ddp.module.load_state_dict(kept["weights"])
            optimizer.load_state_dict(copy.deepcopy(kept["optimizer"]))
            if "errors" in kept:
                assert other.reducer.load_state_dict(kept["errors"], list(ddp.parameters()))
                assert not other.reducer.load_state_dict(kept["errors"], list(ddp.parameters())[1:])
            done = rebuild_as(ddp, kept["layout"]) if warm else None
            again = train(ddp, optimizer, range(4, STEPS))
            same = bits(*ddp.module.parameters()) == bits(*calm.module.parameters())
            found[f"{reduction}, {compression}, {'warm' if warm else 'cold'}"] = {
                "same": same,
                "done": done,
                "layout": layout,
                "losses": again,
                "calm": losses[4:],
                "bits": bits(*ddp.module.parameters()),
            }
    return found


def carried(make) -> float:
    """How far the sum of what PowerSGD gives in many steps is from the sum of the gradients, in units of one step's."""
    reducer = make("flat", "powersgd").reducer
    reducer.begin()
    gradient = vector(512 * 64, RANK)
    mean = sum(vector(512 * 64, rank) for rank in range(dist.get_world_size())) / dist.get_world_size()
    total = torch.zeros_like(mean)
    for _ in range(60):
        own = gradient.clone()
        reducer.reduce_bucket(VectorAsBucket(own)).wait()
        total += own
    return ((total / 60 - mean).norm() / mean.norm()).item()


def threads_left(make) -> int:
    """Threads of reductions that nobody has any more."""
    for way in (("hierarchical", "bf16"), ("flat", "powersgd")):
        reducer = make(*way).reducer
        if way[1] == "powersgd":
            reducer.begin()
        reducer.reduce_bucket(VectorAsBucket(vector(1024, RANK))).wait()
        assert count_threads() or DEVICE.type == "cuda"  # where streams take their place
        del reducer
    gc.collect()
    deadline = time.monotonic() + 10
    while count_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    return count_threads()


def count_threads() -> int:
    return sum(thread.name.startswith("gradients-") for thread in threading.enumerate())


def measured(groups: Groups) -> dict:
    """What is found by trying, and what is left of it."""
    before = torch.get_rng_state()
    begin = time.monotonic()
    engine = Engine(ReductionOptions("auto", "bf16"), groups, DEVICE, 2**20)
    seconds = time.monotonic() - begin
    begin = time.monotonic()
    again = Engine(ReductionOptions("auto", "bf16"), groups, DEVICE, 2**20)
    cached = time.monotonic() - begin
    kept = json.loads(json.dumps({**engine.as_dict(), "plan": Plan("flat", "bf16", 12345).as_dict()}))
    told = Engine(ReductionOptions("auto", "bf16"), groups, DEVICE, 4 * 2**20, kept)
    return {
        "plan": engine.plan.as_dict(),
        "reason": engine.reason,
        "again": again.plan.as_dict(),
        "seconds": seconds,
        "cached": cached,
        "untouched": torch.equal(before, torch.get_rng_state()),
        "told": told.plan.as_dict(),
    }


def main() -> None:
    torch.set_num_threads(1)
    logging.disable()
    dist.init_process_group(BACKEND)
    world = dist.get_world_size()
    groups = Groups(Topology.of([rank // PER_HOST for rank in range(world)]), BACKEND)

    def make(reduction, compression):
        low_rank = {"powersgd_start": 3, "powersgd_rank": 2} if compression == "powersgd" else {}
        return Engine(ReductionOptions(reduction, compression, **low_rank), groups, DEVICE, 2**20)

    left = threads_left(make)
    found = {
        "threads": left,
        "vectors": vectors(groups),
        "placed": placed(groups),
        "ways": ways(make),
        "resumed": resumed(make),
    }
    found |= {"carried": carried(make), "measured": measured(groups)}
    found["reason"] = make("hierarchical", "bf16").reason
    (OUT / f"rank-{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
