# SPDX-License-Identifier: Apache-2.0
"""Types for mixins of the Trainer's and Fabric's strategies: the attributes of the strategy that they use.

At run time the class is empty: a mixin then derives from ``object``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Any

    import torch

    class _Host:
        """Any Lightning strategy for several processes.

        Attributes:
            root_device: Device of this process.
            world_size: Number of processes.
            global_rank: Rank of this process.
            local_rank: Rank of this process on its host.
            node_rank: Index of this host.
            num_processes: Number of processes on this host.

        """

        root_device: torch.device
        world_size: int
        global_rank: int
        local_rank: int
        node_rank: int
        num_processes: int
        _start_method: Any
        _process_group_backend: str | None
        _timeout: timedelta | None

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...
        @property
        def distributed_sampler_kwargs(self) -> dict[str, Any]: ...
        def setup_environment(self) -> None: ...
        def process_dataloader(self, dataloader: Any) -> Any: ...
        def optimizer_step(self, *args: Any, **kwargs: Any) -> Any: ...
        def _setup_distributed(self) -> None: ...
        def _configure_launcher(self) -> None: ...

    Host = _Host
else:
    Host = object

__all__ = ["Host"]
