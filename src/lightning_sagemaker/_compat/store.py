# SPDX-License-Identifier: Apache-2.0
"""The store by which the processes of the default group have found each other."""

from __future__ import annotations

import uuid

import torch.distributed as dist
from torch.distributed import distributed_c10d

from lightning_sagemaker._compat.guard import require


def process_store() -> dist.Store:
    """The store of the default group, in this process; thread-safe.

    Raises:
        NameGone: If this version of torch does not expose it.

    """
    require(distributed_c10d, "_get_default_store")
    store: dist.Store = distributed_c10d._get_default_store()
    return store


def own_connection(purpose: str) -> dist.Store:
    """The process store, over a separate connection that no other thread blocks.

    Args:
        purpose: Purpose of the connection, the same on all ranks.

    """
    store = process_store()
    if hasattr(store, "clone"):
        copy: dist.Store = store.clone()
        return copy
    # torch 2.5 can neither clone a store nor return its prefix: the copy gets a new one, from the first rank to request it.
    inner = getattr(store, "_underlying_non_prefix_store", store)
    if not isinstance(inner, dist.TCPStore):  # a file or in-process store has no connection
        return store
    prefix = store.compare_set(purpose, "", uuid.uuid4().hex).decode()
    return dist.PrefixStore(prefix, dist.TCPStore(inner.host, inner.port, is_master=False))
