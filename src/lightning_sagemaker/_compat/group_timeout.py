# SPDX-License-Identifier: Apache-2.0
"""The timeout of a process group: from 2.15 on torch has a public function, and warns about the private one."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch.distributed import distributed_c10d

set_timeout: Callable[..., None] = getattr(dist, "set_timeout", None) or distributed_c10d._set_pg_timeout
