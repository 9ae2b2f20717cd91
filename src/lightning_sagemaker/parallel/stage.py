# SPDX-License-Identifier: Apache-2.0
"""Runs the user's code as one stage of a pipeline.

Before its own blocks, a stage runs the code on dummy values: a function of another stage's parameter returns NaN of the
right shape, blocks of other stages are skipped, and the block before its first one returns the received tensors. After
its last own block the code is aborted. In the first run of each kind of step, a use of such NaN is an error.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction

from lightning_sagemaker._compat import pytree
from lightning_sagemaker.parallel.absent import Absent, check, fill, nothing
from lightning_sagemaker.parallel.blocks import Blocks
from lightning_sagemaker.parallel.degrees import PipelineError
from lightning_sagemaker.parallel.delayed import free
from lightning_sagemaker.parallel.functions import by_modules
from lightning_sagemaker.parallel.partition import Partition
from lightning_sagemaker.parallel.trace import ReplacedForwards, TensorNumber, Trace, tensors_of


class _StageDone(BaseException):
    """The last own block has returned; a BaseException, so that the user's code does not catch it."""


@dataclass
class _Visit:
    """One microbatch's visit to one stage."""

    first: int
    end: int
    last_of_all: bool
    received: list[Tensor] | None
    absent: Absent | None
    is_new: bool
    is_before: bool
    next_block: int = 0
    sent: list[Tensor] = field(default_factory=list)
    has_left: bool = False


class _Received(torch.autograd.Function):
    """A received tensor, for the user's code: unlike a leaf, it may be modified in place."""

    @staticmethod
    def forward(ctx: Any, received: Tensor) -> Tensor:
        return received.data  # neither a copy nor a view

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Stages:
    """The stages of this process.

    Args:
        root: The module with all parameters; those of other stages are freed, and may be on the meta device.
        blocks: Blocks of the module.
        traced: The trace of the module.
        partition: Partition of the blocks.
        own: Indices of the stages of this process.
        device: Device of the stages.

    """

    def __init__(
        self,
        root: nn.Module,
        blocks: Blocks,
        traced: Trace,
        partition: Partition,
        own: tuple[int, ...],
        device: torch.device,
    ) -> None:
        self._blocks, self._traced, self._partition, self._own = blocks, traced, partition, own
        self._shapes: dict[int, Tensor] = {}
        self._visit: _Visit | None = None
        self._known: set[tuple[int, str]] = set()
        self._recomputes = False
        self._replayed: list[Any] = []
        self._output: Any = None
        self._computed: dict[int, Callable[..., Any]] = {}
        for name, parameter in root.named_parameters():
            if not set(partition.stages[name]) & set(own):
                self._shapes[id(parameter)] = torch.empty_like(parameter, device="meta", requires_grad=False)
                free(parameter)
        root.to(device)
        self._hooks: list[Any] = []
        self._forwards = ReplacedForwards()
        around = {name.rpartition(".")[0] for name in blocks.names}
        for name, module in root.named_modules():
            if any(f"{one}.".startswith(f"{name}." if name else "") for one in around):
                continue  # this module calls the blocks: it uses its own parameters before or after them
            if any(id(parameter) in self._shapes for parameter in module.parameters(recurse=False)):
                self._hooks.append(module.register_forward_pre_hook(self._check_call))
        if traced.outer is not None:
            outer = root.get_submodule(traced.outer)
            self._forwards.replace(outer, functools.partial(self._run_outer, outer.forward))
        for index, block in enumerate(blocks.modules):
            self._forwards.replace(block, functools.partial(self._run_block, index, block.forward))
        self.parameters = [parameter for parameter in root.parameters() if not self.is_absent(parameter)]

    @property
    def has_outer(self) -> bool:
        """Whether the step calls one module with all parameters, whose output can replace the model's."""
        return self._traced.outer is not None

    def remove(self) -> None:
        """Restore the module's forward methods; absent parameters stay absent."""
        for hook in self._hooks:
            hook.remove()
        self._forwards.restore()

    def compute_by(self, module: nn.Module, forward: Callable[..., Any]) -> bool:
        """Replace the ``forward`` of a block, which is called as part of a stage still; False if ``module`` is no block."""
        index = next((index for index, block in enumerate(self._blocks.modules) if block is module), None)
        if index is not None:
            self._computed[index] = forward
        return index is not None

    def shape(self, tensor: Tensor) -> torch.Size:
        """Shape of a parameter, absent or not, or of a buffer."""
        return self._shapes.get(id(tensor), tensor).shape

    def is_absent(self, parameter: Tensor) -> bool:
        """Whether a parameter belongs to stages of other processes only."""
        return id(parameter) in self._shapes

    def run(
        self, stage: int, step: Callable[[], Any], received: list[Tensor] | None, kind: str = ""
    ) -> tuple[Any, list[Tensor] | None]:
        """Run ``step`` as one stage.

        Args:
            stage: Index of the stage.
            step: The user's code for one microbatch.
            received: Output tensors of the previous block; None for the first stage.
            kind: Name of the user's code. Its first run is checked for uses of other stages' values.

        Returns:
            What ``step`` returned and None, for the last stage; None and the tensors to send, for the others.

        Raises:
            PipelineError: If the code does not call each block once, in order, or uses a value that bypasses the blocks.

        """
        own = self._partition.blocks_of(stage)
        is_last = own.stop == len(self._blocks)
        is_new = (stage, kind) not in self._known
        absent = None if received is None else Absent(self._shapes)
        self._recomputes = False
        visit = self._visit = _Visit(own.start, own.stop, is_last, received, absent, is_new, absent is not None)
        try:
            if absent is not None:
                absent.__enter__()  # type: ignore[no-untyped-call]
            with by_modules():
                result = step()
        except _StageDone:
            result = None
        finally:
            self._visit = None
            if visit.absent is not None:
                visit.absent.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._known.add((stage, kind))
        if visit.has_left:
            check(visit.sent, "a block")
            return None, visit.sent
        if visit.next_block < len(self._blocks):
            raise PipelineError(
                f"the step returned after {visit.next_block} of {len(self._blocks)} blocks. HINT: the step must call the"
                " full model exactly once."
            )
        check(result, "in what it returns")
        return result, None

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """Context for a backward pass, in which the model's own activation checkpointing calls blocks again."""
        self._recomputes = True
        try:
            yield
        finally:
            self._recomputes = False

    def call_outside(self) -> None:
        """Let blocks run whenever they are called, until the next :meth:`run`. Only where this process has all stages."""
        self._recomputes = True

    def replay(self, step: Callable[[], Any], output: Any) -> Any:
        """Run ``step`` again with the model's call replaced by ``output``; returns ``step``'s result."""
        self._replayed.append(output)
        try:
            return step()
        finally:
            self._replayed.clear()

    def _run_outer(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._replayed:
            return self._replayed[0]
        self._output = forward(*args, **kwargs)
        return self._output

    def take_output(self) -> Any:
        """The model's output in the last run, if that was of the last stage."""
        output, self._output = self._output, None
        return output

    def _check_call(self, module: nn.Module, _: Any) -> None:
        """A module without its parameters may only be called before the stage's own blocks."""
        if self._replayed or self._recomputes:
            return
        if self._visit is None:
            raise _outside(type(module).__name__)
        if not self._visit.is_before:
            raise PipelineError(
                f"{type(module).__name__}, which belongs to another pipeline stage, was called after this stage's blocks."
                " HINT: a partitioned model can be called only once per step, and modules after its blocks must not call"
                " modules before them."
            )

    def _run_block(self, index: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        visit, forward = self._visit, self._computed.get(index, forward)
        if self._recomputes:
            return forward(*args, **kwargs)
        if visit is None:
            raise _outside(self._blocks.names[index])
        if index != visit.next_block:
            names, expected = self._blocks.names, visit.next_block
            hint = "a partitioned model can be called only once per step"
            if index > expected:
                hint = "a step must call all blocks; if some are dropped at random, as by layerdrop, set that to 0"
            what = "no more block" if expected == len(names) else names[expected]
            raise PipelineError(f"{names[index]} was called where {what} was expected. HINT: {hint}.")
        visit.next_block += 1
        if visit.is_new and not torch.is_grad_enabled():
            _check_checkpointing()
        if index + 1 < visit.first and not self._traced.alike:
            return forward(*args, **kwargs)  # NaN of the right shape, as its parameters are absent
        if index < visit.first:
            return self._pass_by(index, visit, (args, kwargs))
        output = forward(*args, **kwargs)
        if visit.next_block == visit.end and not visit.last_of_all:
            inputs = tensors_of((args, kwargs))
            visit.sent = tensors_of(output) + [inputs[number] for number in self._traced.carried[index]]
            visit.has_left = True
            raise _StageDone
        return output

    def _pass_by(self, index: int, visit: _Visit, arguments: Any) -> Any:
        assert visit.received is not None
        tensors = [_Received.apply(tensor) for tensor in visit.received]  # type: ignore[no-untyped-call]
        if index + 1 < visit.first:
            tensors = [nothing(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]
        elif visit.is_before and visit.absent is not None:
            visit.is_before = False
            if not visit.is_new:
                visit.absent.__exit__(None, None, None)  # type: ignore[no-untyped-call]
                visit.absent = None
            carried = self._traced.carried[index]
            inputs = tensors_of(arguments)
            for number, tensor in zip(carried, tensors[len(tensors) - len(carried) :], strict=True):
                fill(inputs[number], tensor)  # the user's code refers to it and continues with it
            if visit.absent is not None:
                visit.absent.is_over = True
        numbers = iter(tensors)
        return pytree.tree_map(
            lambda leaf: next(numbers) if _is_number(leaf) else leaf, self._traced.outputs[index], is_leaf=_is_number
        )


def _check_checkpointing() -> None:
    """Raise for reentrant activation checkpointing, which runs a block without recording gradients for the sent tensors.

    Raises:
        PipelineError: If the block is called by it.

    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is CheckpointFunction.forward.__code__:
            raise PipelineError(
                "a block is called by a checkpoint with use_reentrant=True, which cannot be split. HINT: pass"
                " use_reentrant=False, in transformers gradient_checkpointing_enable({'use_reentrant': False}), or leave it"
                " to SMPStrategy(activation_checkpointing=True)."
            )


def _outside(name: str) -> PipelineError:
    return PipelineError(
        f"{name} was called outside a step. HINT: a partitioned model can only be called in training_step,"
        " validation_step, test_step and predict_step, or in a function with @smp.step."
    )


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, TensorNumber)
