# SPDX-License-Identifier: Apache-2.0
"""A group that cannot be formed, because a rank is lost meanwhile, is left at once: others wait for the next one."""

import socket
import threading
import time

import pytest
import torch.distributed as dist

from lightning_sagemaker.collectives.async_max import AsyncMaxReduce
from lightning_sagemaker.recovery import group
from lightning_sagemaker.recovery.group import QuorumGroup
from lightning_sagemaker.simulator.hosts import free_port


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")  # which forming a group sets for good
    one = QuorumGroup("127.0.0.1")
    yield one
    one.dissolve()
    AsyncMaxReduce.uses_default_group = (
        False  # else votes of this process's other tests would ask for a group that is gone
    )


def left(own: QuorumGroup, first: dict, after: float) -> float:
    """Seconds from the loss of the other rank to the end of a try to form a group with it."""
    lost: list[float] = []

    def lose() -> None:
        lost.append(time.monotonic())
        own.leave()

    timer = threading.Timer(after, lose)
    if after:
        timer.start()
    else:
        lose()
    with pytest.raises(RuntimeError):
        own.form("gloo", 1, 0, [first, {"host": "127.0.0.1", "store": 1}], is_lost=lambda: bool(lost))
    end = time.monotonic()
    assert not dist.is_initialized()
    return end - lost[0]


@pytest.mark.parametrize("after", [0.0, 0.3], ids=["before", "while it waits"])
@pytest.mark.parametrize("first", ["own", "gone"])
def test_it_is_left_when_a_rank_is_lost(own, first, after):
    """The first rank serves the store: it is this one, in which the other's address never comes, or the other."""
    assert left(own, own.info if first == "own" else {"host": "127.0.0.1", "store": free_port()}, after) < 1.0


def test_a_dead_rank_may_still_be_connected_to(own):
    """Its loader processes have a copy of the socket at which its store listened."""
    with socket.create_server(("127.0.0.1", 0)) as listens:
        assert left(own, {"host": "127.0.0.1", "store": listens.getsockname()[1]}, 0.3) < 1.0


def test_the_loss_may_be_told_just_before_this_rank_waits(own, monkeypatch):
    makes = dist.TCPStore

    def makes_late(*arguments, **options):
        time.sleep(0.3)  # the loss is told now, when there is no connection that could be shut down
        return makes(*arguments, **options)

    monkeypatch.setattr(group.dist, "TCPStore", makes_late)
    assert left(own, own.info, 0.1) < 1.5


def test_a_slow_machine_gets_more_time_at_each_try(own, monkeypatch):
    monkeypatch.setattr(group, "_PER_RANK", 0.0)
    own._patience = 0.1
    gone = {"host": "127.0.0.1", "store": free_port()}
    for after in (0.2, 0.4, 0.8):
        with pytest.raises(RuntimeError, match="connect"):
            own.form("gloo", 1, 0, [gone, gone])
        assert own._patience == after
    own.form("gloo", 2, 0, [own.info])
    assert own._patience == group._TO_MEET
