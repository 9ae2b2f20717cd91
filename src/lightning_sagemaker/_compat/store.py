# SPDX-License-Identifier: Apache-2.0
"""The store by which the processes of the default group have found each other."""

from __future__ import annotations

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
