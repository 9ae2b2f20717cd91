# SPDX-License-Identifier: Apache-2.0
"""``torch.distributed.monitored_barrier`` for process groups that hold gloo under another name.

torch checks the name of the backend, and refuses every other than gloo's; a group cannot override this.
"""

from __future__ import annotations

from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed import distributed_c10d

from lightning_sagemaker._compat.guard import require

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


_NAME = "monitored_barrier"
_MARK = "_lightning_sagemaker"


_KINDS: set[type[dist.ProcessGroup]] = set()


def take_over(kind: type[dist.ProcessGroup]) -> None:
    """Make ``monitored_barrier`` use the gloo group within groups of a class. Idempotent.

    Args:
        kind: Class of process groups with an attribute ``gloo``, torch's own group.

    """
    _KINDS.add(kind)
    require(distributed_c10d, _NAME)
    original = distributed_c10d.monitored_barrier
    if hasattr(original, _MARK):
        return

    @wraps(original)
    def monitored_barrier(
        group: ProcessGroup | None = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        checked = dist.group.WORLD if group is None else group
        if not isinstance(checked, tuple(_KINDS)):
            original(group, timeout, wait_all_ranks)
            return
        if timeout is None:
            timeout = distributed_c10d.default_pg_timeout
        elif not isinstance(timeout, timedelta):
            timeout = timedelta(seconds=timeout)
        checked.gloo.monitored_barrier(timeout, wait_all_ranks)  # type: ignore[union-attr]

    vars(monitored_barrier)[_MARK] = True
    for module in (distributed_c10d, dist):
        setattr(module, _NAME, monitored_barrier)
