# SPDX-License-Identifier: Apache-2.0
"""Two ranks, of which the first also has the shard of a third one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional_collectives
from torch.distributed.nn import functional

from lightning_sagemaker._compat.default_group import alone_in_default_group, refusing_collectives
from lightning_sagemaker.collectives import clean_exit
from lightning_sagemaker.recovery.step_collectives import NeedsAllRanks, StepReductions

ONE = torch.ones(2)
COLLECTIVES: dict[str, Callable[[], object]] = {
    "all_reduce": lambda: dist.all_reduce(ONE.clone()),
    "asynchronous": lambda: dist.all_reduce(ONE.clone(), async_op=True),
    "all_gather": lambda: dist.all_gather([ONE.clone(), ONE.clone()], ONE),
    "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(torch.zeros(4), ONE),
    "all_gather_object": lambda: dist.all_gather_object([None, None], 1),
    "broadcast": lambda: dist.broadcast(ONE.clone(), 0),
    "broadcast_object_list": lambda: dist.broadcast_object_list([1], 0),
    "barrier": dist.barrier,
    "monitored_barrier": dist.monitored_barrier,
    "gather": lambda: dist.gather(ONE, [ONE.clone(), ONE.clone()] if dist.get_rank() == 0 else None),
    "reduce": lambda: dist.reduce(ONE.clone(), 0),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(torch.zeros(1), ONE.clone()),
    "all_to_all_single": lambda: dist.all_to_all_single(torch.zeros(2), ONE.clone()),
    "send": lambda: dist.send(ONE, 1 - dist.get_rank()),
    "functional": lambda: functional_collectives.all_reduce(ONE, "sum", dist.group.WORLD),
    "differentiable": lambda: functional.all_gather(ONE.clone().requires_grad_()),
}


def refuse() -> None:
    rank = dist.get_rank()
    reductions = StepReductions()
    with reductions.apart():
        assert (dist.get_rank(), dist.get_world_size(), dist.is_initialized()) == (rank, 2, True)
    for name, call in COLLECTIVES.items():
        if rank == 0:  # the other one does not take part
            with pytest.raises(NeedsAllRanks, match="was called in a step"), reductions.apart():
                call()
            assert dist.get_backend() == "gloo", name
    count = torch.ones(1)
    dist.all_reduce(count)
    assert count.item() == 2


def refuse_functional_ones_too() -> None:
    """They look up the group, whatever else is allowed."""

    def refused(name: str) -> NoReturn:
        raise NeedsAllRanks(name)

    if dist.get_rank() == 0:
        with pytest.raises(NeedsAllRanks, match="functional"), refusing_collectives(refused, lambda name: True):
            COLLECTIVES["functional"]()


def call_alone() -> None:
    """The other rank does not take part, so what is not this rank's alone would wait for ever, or meet the last one."""
    if dist.get_rank() == 0:
        for name, call in COLLECTIVES.items():
            called: list[str] = []
            if name != "functional":
                with alone_in_default_group(called.append):
                    call()
                assert called, name
        with alone_in_default_group(lambda name: None):
            parts: list[object] = [torch.zeros(2), torch.zeros(2)]
            dist.all_gather(parts, ONE)
            assert all(torch.equal(part, ONE) for part in parts)
            dist.all_gather_object(parts, {"own": 1})
            assert parts == [{"own": 1}] * 2
    count = torch.ones(1)
    dist.all_reduce(count)
    assert count.item() == 2


def add() -> None:
    """Two values of each of the three shards are reduced."""
    rank = dist.get_rank()
    for operation, expected in {"mean": (2, 20), "sum": (6, 60), "max": (3, 30), dist.ReduceOp.MIN: (1, 10)}.items():
        reductions = StepReductions()
        assert reductions.reduce(torch.ones(1), operation) is None
        if rank == 0:
            with reductions.apart():
                assert reductions.reduce(torch.tensor(3.0), operation) == 3
                assert reductions.reduce(torch.tensor(30.0), operation) == 30
        with reductions.own():
            found = [reductions.reduce(torch.tensor(scale * (rank + 1.0)), operation) for scale in (1, 10)]
            last = reductions.reduce(torch.tensor(2.0), operation)  # of a hook that only the own pass has
        assert last == {"mean": 2, "sum": 4}.get(operation, 2), operation
        assert found == [torch.tensor(float(value)) for value in expected], operation
        assert reductions.reduce(torch.ones(1), operation) is None


if __name__ == "__main__":
    dist.init_process_group("gloo")
    refuse()
    refuse_functional_ones_too()
    call_alone()
    add()
    clean_exit.let_threads_finish()
    dist.destroy_process_group()
