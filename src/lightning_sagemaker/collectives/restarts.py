# SPDX-License-Identifier: Apache-2.0
"""A store of its own for each attempt of torchrun's ``--max-restarts``.

torchrun's agent lends its processes the store by which they find each other. torch takes it for new at each restart
(``_create_c10d_store`` in ``torch/distributed/rendezvous.py`` adds no prefix any more); both kinds of rendezvous keep
the one that they made first, so after a restart a process may find the address of one that is dead, and wait for it:
gloo does until the time limit of the process group, which is half an hour. Seen with torch 2.13; a matter of who is
quicker.

So the first process opens another store, and sends the others its port through the agent's. What was left there must
not be taken for news, and the number of the attempt does not tell them apart: the agents of several hosts count for
themselves. So each process takes a ticket that no other has had, and waits for the answer to it.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

_USES_AGENT, _MAX_RESTARTS = "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_MAX_RESTARTS"
_ADDRESS, _PORT = "MASTER_ADDR", "MASTER_PORT"
_TIME_LIMIT = timedelta(minutes=30)
_PAUSE = 0.01


class RestartError(RuntimeError):
    """The processes of a restarted launch did not find each other."""


@contextmanager
def own_store(rank: int, world_size: int) -> Iterator[int | None]:
    """Within it ``init_process_group`` uses a store that no earlier attempt has written to. Collective over all ranks.

    It does nothing where torchrun may not restart, where there is a process group already, and for one process.

    Args:
        rank: Rank of this process.
        world_size: Number of processes.

    Yields:
        The port of the new store, which ``MASTER_PORT`` holds from now on; None if nothing was done.

    Raises:
        RestartError: If the others do not come.

    """
    if world_size == 1 or dist.is_initialized() or not may_find_leftovers():
        yield None
        return
    agents = dist.PrefixStore("lightning-sagemaker", _agents_store())
    try:
        port, server = _serve(agents, world_size) if rank == 0 else (_ask(agents), None)
    except dist.DistError as error:
        raise RestartError(
            f"{_MAX_RESTARTS}={os.environ[_MAX_RESTARTS]} was set, and some of the {world_size} processes did not join"
            f" within {_TIME_LIMIT.total_seconds():.0f} s ({error}). HINT: check which ones exited; if none did, set"
            " TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun."
        ) from error
    os.environ[_USES_AGENT], os.environ[_PORT] = str(False), str(port)
    yield port
    del server  # until here: torch finds the open one by its port, and the process group keeps it from then on


def may_find_leftovers() -> bool:
    """Whether this process would use a store that an earlier attempt may have written to."""
    return os.environ.get(_USES_AGENT) == str(True) and int(os.environ.get(_MAX_RESTARTS, 0)) > 0


def _agents_store() -> dist.TCPStore:
    return dist.TCPStore(os.environ[_ADDRESS], int(os.environ[_PORT]), is_master=False, timeout=_TIME_LIMIT)


def _serve(agents: dist.Store, world_size: int) -> tuple[int, dist.TCPStore]:
    """Open a store; answer whoever asks, until all others have read it."""
    server = dist.TCPStore(
        os.environ[_ADDRESS], 0, is_master=True, wait_for_workers=False, multi_tenant=True, timeout=_TIME_LIMIT
    )
    came, answered, deadline = f"came/{uuid.uuid4()}", 0, time.monotonic() + _TIME_LIMIT.total_seconds()
    while agents.add(came, 0) < world_size - 1:
        tickets = agents.add("tickets", 0)
        for ticket in range(answered + 1, tickets + 1):  # those of earlier attempts as well: nobody reads these
            agents.set(f"answer/{ticket}", f"{server.port} {came}")
        answered = tickets
        if time.monotonic() > deadline:
            raise dist.DistStoreError(f"{agents.add(came, 0) + 1} came")
        time.sleep(_PAUSE)
    return server.port, server


def _ask(agents: dist.Store) -> int:
    """The port of the store that the first process has opened."""
    ticket = agents.add("tickets", 1)
    port, came = agents.get(f"answer/{ticket}").decode().split(" ", 1)
    agents.add(came, 1)
    return int(port)
