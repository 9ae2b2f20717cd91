# SPDX-License-Identifier: Apache-2.0
"""Copies of optimizer states, made during the next forward and backward pass.

Only an optimizer's update changes its states, so they need not be copied in the saving step: a thread copies them,
and the next update waits for it. Weights are not copied that way: a script may change them at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from lightning_sagemaker.events import Event

_Loss = TypeVar("_Loss")
_Arguments = tuple[object, ...]
_Keywords = dict[str, object]


@dataclass(frozen=True)
class _Copy:
    """One tensor to be copied.

    Attributes:
        source: The optimizer's tensor.
        target: Memory for the copy, of the same shape.
        version: Autograd's version counter of ``source``.

    """

    source: Tensor
    target: Tensor
    version: int


class DeferredCopies:
    """Copies made by another thread before the next update of any of the optimizers.

    Attributes:
        waited: Seconds for which updates have waited for the copies.

    """

    def __init__(self) -> None:
        self._copies: list[_Copy] = []
        self._handles: list[RemovableHandle] = []
        self._done = Event()
        self.waited = 0.0

    def add(self, source: Tensor, target: Tensor) -> None:
        """Copy ``source`` to ``target`` when :meth:`run` is called."""
        self._copies.append(_Copy(source, target, source._version))

    def hold_updates(self, optimizers: Iterable[Optimizer]) -> None:
        """Make updates of these optimizers wait until the copies are made."""
        self._handles = [optimizer.register_step_pre_hook(self._before_step) for optimizer in optimizers]

    def run(self) -> None:
        """Make the copies; called once, in another thread.

        Raises:
            RuntimeError: If a tensor was changed meanwhile, other than by an update.

        """
        try:
            with torch.no_grad():
                for copy in self._copies:
                    copy.target.copy_(copy.source)
            changed = sum(copy.source._version != copy.version for copy in self._copies)
        finally:
            self._copies = []
            self._done.set()
        if changed:
            raise RuntimeError(
                f"{changed} tensors of optimizer states were modified between a checkpoint with async_checkpoint=True and"
                " the next optimizer step, while they were being copied. HINT: change them in on_before_optimizer_step, or"
                " save with async_checkpoint=False."
            )

    def release(self) -> None:
        """Remove the hooks; called by the training thread."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before_step(self, _: Optimizer, args: _Arguments, kwargs: _Keywords) -> tuple[_Arguments, _Keywords] | None:
        """Wait before an update; with a closure, after the first run of the closure, which contains the backward pass."""
        if self._done.is_set():
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer
        if not callable(closure):
            self._wait()
            return None
        held = self._then_wait(closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": held}
        return (args[0], held, *args[2:]), kwargs

    def _then_wait(self, closure: Callable[[], _Loss]) -> Callable[[], _Loss]:
        def held() -> _Loss:
            loss = closure()
            self._wait()
            return loss

        return held

    def _wait(self) -> None:
        begin = time.perf_counter()
        self._done.wait()
        self.waited += time.perf_counter() - begin
