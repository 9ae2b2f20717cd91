# SPDX-License-Identifier: Apache-2.0
"""A separate rendezvous store for each attempt of torchrun's ``--max-restarts``.

torchrun's agent shares its store with its processes for their rendezvous. torch takes it for new at each restart
(``_create_c10d_store`` in ``torch/distributed/rendezvous.py`` no longer adds a prefix), but both kinds of rendezvous keep
the store that they created first. So after a restart a process may read the address of a dead process and wait for it:
gloo does until the time limit of the process group, which is half an hour. Seen with torch 2.13; a race between
processes.

So rank 0 opens another store, and sends the others its port through the agent's. Keys of an earlier attempt must
not be mistaken for current ones, and the number of the attempt does not distinguish them: agents of several hosts count
independently. So each process draws a unique ticket number and waits for the reply to it.
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
    """Context in which ``init_process_group`` uses a store that no earlier attempt has written to. Collective.

    It does nothing if torchrun may not restart, if there already is a process group, and for one process.

    Args:
        rank: Rank of this process.
        world_size: Number of processes.

    Yields:
        The port of the new store, which ``MASTER_PORT`` is set to; None if nothing was done.

    Raises:
        RestartError: If other processes do not join within the time limit.

    """
    if world_size == 1 or dist.is_initialized() or not _may_find_leftovers():
        yield None
        return
    agents = dist.PrefixStore("lightning-sagemaker", _agents_store())
    try:
        port, server = _serve(agents, world_size) if rank == 0 else (_request_port(agents), None)
    except dist.DistError as error:
        raise RestartError(
            f"{_MAX_RESTARTS}={os.environ[_MAX_RESTARTS]} was set, and some of the {world_size} processes did not join"
            f" within {_TIME_LIMIT.total_seconds():.0f} s ({error}). HINT: check which ones exited; if none did, set"
            " TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun."
        ) from error
    os.environ[_USES_AGENT], os.environ[_PORT] = str(False), str(port)
    yield port
    del server  # kept until here: torch finds the open store by its port, and then keeps it alive


def _may_find_leftovers() -> bool:
    """Whether this process would use a store that an earlier attempt may have written to."""
    return os.environ.get(_USES_AGENT) == str(True) and int(os.environ.get(_MAX_RESTARTS, 0)) > 0


def _agents_store() -> dist.TCPStore:
    return dist.TCPStore(os.environ[_ADDRESS], int(os.environ[_PORT]), is_master=False, timeout=_TIME_LIMIT)


def _serve(agents: dist.Store, world_size: int) -> tuple[int, dist.TCPStore]:
    """Open a store and reply to every ticket, until all other processes have joined."""
    server = dist.TCPStore(
        os.environ[_ADDRESS], 0, is_master=True, wait_for_workers=False, multi_tenant=True, timeout=_TIME_LIMIT
    )
    joined, answered, deadline = f"joined/{uuid.uuid4()}", 0, time.monotonic() + _TIME_LIMIT.total_seconds()
    while agents.add(joined, 0) < world_size - 1:
        tickets = agents.add("tickets", 0)
        for ticket in range(answered + 1, tickets + 1):  # also those of earlier attempts, which nobody reads
            agents.set(f"answer/{ticket}", f"{server.port} {joined}")
        answered = tickets
        if time.monotonic() > deadline:
            raise dist.DistStoreError(f"{agents.add(joined, 0) + 1} joined")
        time.sleep(_PAUSE)
    return server.port, server


def _request_port(agents: dist.Store) -> int:
    """Request the port of the store that rank 0 has opened."""
    ticket = agents.add("tickets", 1)
    port, joined = agents.get(f"answer/{ticket}").decode().split(" ", 1)
    agents.add(joined, 1)
    return int(port)
