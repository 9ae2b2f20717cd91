# SPDX-License-Identifier: Apache-2.0
"""The store by which the processes of the default group have found each other."""

from __future__ import annotations

import uuid

import torch.distributed as dist
from torch.distributed import distributed_c10d

from lightning_sagemaker._compat.guard import require


def process_store() -> dist.Store:
    """Of this process; may be used by several threads.

    Raises:
        NameGone: If this version of torch does not say.

    """
    require(distributed_c10d, "_get_default_store")
    store: dist.Store = distributed_c10d._get_default_store()
    return store


def own_connection(purpose: str) -> dist.Store:
    """The process store by a connection on which nobody else waits.

    Args:
        purpose: Purpose of the connection, the same on all ranks.

    """
    store = process_store()
    if hasattr(store, "clone"):
        copy: dist.Store = store.clone()
        return copy
    # Torch 2.5 cannot copy one, nor say its prefix: the copy has one that the first rank to ask makes up.
    inner = getattr(store, "_underlying_non_prefix_store", store)
    if not isinstance(inner, dist.TCPStore):  # in files or in this process: there is no connection
        return store
    prefix = store.compare_set(purpose, "", uuid.uuid4().hex).decode()
    return dist.PrefixStore(prefix, dist.TCPStore(inner.host, inner.port, is_master=False))
