# SPDX-License-Identifier: Apache-2.0
"""Wraps a loop's request for its loaders, which runs the script's own code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from lightning_sagemaker._compat.loops import LoopEvents
    from lightning_sagemaker._types import CombinedLoader


class HasLoaders(Protocol):
    """A loop, once its loaders have been requested."""

    _combined_loader: CombinedLoader | None


def requesting(events: LoopEvents, setup: Callable[[], None], loop: HasLoaders, whose: str) -> Callable[[], None]:
    """The loop's ``setup_data``, run with the random states of ``requests``, and followed by listeners."""

    def requested() -> None:
        before = loop._combined_loader
        with nullcontext() if events.requests is None else events.requests.around(whose, is_first=before is None):
            setup()
        for listener in events.after_loaders_request if loop._combined_loader is not before else []:
            listener(whose)

    return requested
