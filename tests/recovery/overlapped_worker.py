# SPDX-License-Identifier: Apache-2.0
"""Gradients that come in all ways: ``overlapped_worker.py FOLDER`` on two processes; rank zero writes what it found."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from lightning_sagemaker.recovery import gradients
from lightning_sagemaker.recovery.overlapped import OverlappedMeans


class Net(nn.Module):
    """A layer that is used twice, one that is used now and then, one never; recomputed if asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared, self.sometimes, self.never = (nn.Linear(4, 4) for _ in range(4))
        self.last = nn.Linear(4, 1)

    def forward(self, x, also: bool, recompute: int):
        x = self.first(x)
        for number in range(2):
            again = number < recompute
            x = checkpoint(self.shared, x, use_reentrant=True) if again else self.shared(x)
        return self.last(self.sometimes(x) if also else x).square().mean()


def agreed(is_valid: bool) -> bool:
    """A step is valid if all ranks say so."""
    vote = torch.tensor(int(is_valid))
    dist.all_reduce(vote, dist.ReduceOp.MIN)
    return bool(vote)


def run(steps, adopted_from: int | None = None) -> dict:
    """Steps with overlapping, and the same ones without; ``steps``: of each rank, the arguments of the forward pass."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Net()
    parameters = list(net.parameters())
    overlapped, valid, started = OverlappedMeans(2), [], []
    starts = gradients.Bucket.start

    def start(self, *arguments) -> None:
        started.append(overlapped.is_under_way)
        starts(self, *arguments)

    gradients.Bucket.start = start
    equal = True
    for number, step in enumerate(steps):
        also, recompute = step[rank]
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * number + rank))
        adopted = {one: torch.ones_like(one) for one in parameters[:2]} if adopted_from == number else {}

        def backward(x=x, also=also, recompute=recompute) -> None:
            for one in parameters:
                one.grad = None
            net(x.requires_grad_(), also, recompute).backward()

        overlapped.begin(parameters, adopted)
        backward()
        valid.append(agreed(overlapped.wait()))
        overlapped.put_back()
        found = [one.grad for one in parameters]
        backward()
        for one, more in adopted.items():
            one.grad = one.grad + more
        gradients.average(parameters, 2)
        same = all(
            (a is None) == (b.grad is None) and (a is None or torch.equal(a, b.grad))
            for a, b in zip(found, parameters, strict=True)
        )
        equal &= same or not valid[-1]
    gradients.Bucket.start = starts
    overlapped.release()
    return {
        "equal": equal,
        "valid": valid,
        "early": sum(started),
        "hooks": [len(one._post_accumulate_grad_hooks or {}) for one in parameters],
    }


def kept() -> dict:
    """Gradients have the strides of their parameters, as fused optimizers demand, and what a script keeps stays as it is."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    overlapped, found, copies = OverlappedMeans(2), [], []
    for number in range(3):
        x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(10 * number + rank))
        net.zero_grad()
        overlapped.begin([*net.parameters()], {})
        net(x.to(memory_format=torch.channels_last)).square().mean().backward()
        overlapped.wait()
        overlapped.put_back()
        found.append([one.grad for one in net.parameters()])
        copies.append([one.grad.clone() for one in net.parameters()])
    overlapped.release()
    return {
        "strides": [one.stride() == grad.stride() for one, grad in zip(net.parameters(), found[-1], strict=True)],
        "kept": [
            torch.equal(a, b) for step, copy in zip(found, copies, strict=True) for a, b in zip(step, copy, strict=True)
        ],
    }


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    gradients._BUCKET = 1  # byte: each parameter is a bucket
    plain, also = (False, 0), (True, 0)
    results = {
        "plain": run([(plain, plain)] * 4),
        "one rank lacks some": run([(also, also), (also, plain), (plain, also), (plain, plain)]),
        "adopted": run([(also, also)] * 4, adopted_from=2),
        "recomputed": run([((True, 2), (True, 2))] * 4),
        "used late": run([(plain, plain), (plain, plain), (also, also), (plain, also)]),
        "recomputed at last": run([(also, also), (also, also), ((True, 1), (True, 1)), (also, also)]),
    }
    results["kept"] = kept()
    if dist.get_rank() == 0:
        (folder / "new").write_text(json.dumps(results))
        os.replace(folder / "new", folder / "results.json")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
