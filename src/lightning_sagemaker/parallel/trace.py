# SPDX-License-Identifier: Apache-2.0
"""Traces a step up to its last block, to determine which part of the model uses which parameter.

The rest of the module that calls the blocks is traced as far as possible, since it may use values of earlier
parts. The code of the step after that, which may count and log, is not.

Values that depend on a parameter are fake tensors, and cost nothing. Everything else, such as a mask computed from the
batch, is real, since models branch on it: BERT in transformers 4.56 takes another path if a mask hides nothing. A model
that branches on computed values, such as a mixture of experts, is traced on real values: one forward pass of a microbatch.

The forward pass is split into *regions*: region 0 is everything before the first block and that block, region i the
code between blocks i - 1 and i and block i itself, the last region also everything after the last block. A stage of
blocks i to j runs the user's code of all regions up to j, but needs the parameters of regions i to j only.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.overrides import TorchFunctionMode

from lightning_sagemaker._compat import pytree
from lightning_sagemaker.parallel.blocks import Blocks
from lightning_sagemaker.parallel.containers import map_tensors
from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.parallel.functions import DATA_DEPENDENT, on_shapes_of

_BIRTH = "_region_of_birth"
"""Attribute of a tensor: the region that created it. Tensors without it depend on no parameter."""


@dataclass(frozen=True)
class Trace:
    """The result of tracing.

    Attributes:
        regions: Name of each parameter -> the regions that use it, ascending; equal for all names of a tied parameter.
        outputs: For each block, the structure of its output, with indices in place of tensors.
        carried: For each block, the indices of its input tensors that are used after it, as in ``x + block(x)``.
        outer: Name of the outermost module whose call contains all blocks' calls and all uses of parameters; None
            if the step uses parts of the model itself.
        crossings: Pairs (birth, use) of regions, where a tensor that depends on parameters does not pass through the
            blocks between them.
        alike: Whether all blocks return tensors of the same shapes.
        called: Name of each module that has returned before the last block -> the region in which it was called first.
        reason: Why it was traced on real values; empty if it was traced on shapes.

    """

    regions: Mapping[str, tuple[int, ...]]
    outputs: tuple[Any, ...]
    carried: tuple[tuple[int, ...], ...]
    outer: str | None
    crossings: tuple[tuple[int, int], ...]
    alike: bool
    called: Mapping[str, int]
    reason: str = ""


class _TraceDone(BaseException):
    """The code to be traced has returned; a BaseException, so that the user's code does not catch it."""


class NeedsRealValues(ParallelConfigError):
    """The code of a step does not run on shapes, but may run on real values."""


def trace(
    root: nn.Module,
    blocks: Blocks,
    step: Callable[[Any], Any],
    batch: Any,
    fake: FakeTensorMode | None = None,
    on_real_values: bool = False,
) -> Trace:
    """Run ``step(batch)`` until the module that calls the blocks has returned, on shapes where it depends on parameters.

    Args:
        root: The module with all parameters.
        blocks: Blocks of the module.
        step: The user's code for one microbatch.
        batch: A microbatch.
        fake: Fake mode of the parameters on the meta device; default: there are none.
        on_real_values: Run on the parameters' real values instead, which takes the time of a forward pass on the CPU.

    Raises:
        NeedsRealValues: If the code cannot be run on shapes.
        ParallelConfigError: If the code fails, or does not call the blocks in order.

    """
    tracer = _Tracer(root, blocks)
    replaced = ReplacedForwards()
    for index, block in enumerate(blocks.modules):
        replaced.replace(block, tracer.traced(index, block.forward))
    handles = [
        nn.modules.module.register_module_forward_pre_hook(tracer.called),
        nn.modules.module.register_module_forward_hook(tracer.returned, always_call=True),
    ]
    copies = map_tensors(batch, lambda tensor: tensor.cpu().clone())  # the step may write into them
    try:
        shapes = contextlib.nullcontext() if on_real_values else fake or FakeTensorMode(allow_non_fake_inputs=True)
        with torch.random.fork_rng(devices=[]), shapes, tracer, torch.no_grad():
            step(copies)
    except _TraceDone:
        pass
    except ParallelConfigError:
        raise
    except Exception as error:
        if not tracer.is_after:
            refusal = ParallelConfigError if on_real_values else NeedsRealValues
            raise refusal(_untraced(root, blocks, error, on_real_values)) from error
    finally:
        for handle in handles:
            handle.remove()
        replaced.restore()
    if not tracer.is_after:
        raise ParallelConfigError(
            f"the step of {type(root).__name__} returned after {tracer.region} of the {len(blocks)} blocks in"
            f" {blocks.name}. HINT: the step must call the full model exactly once."
        )
    return tracer.result()


def _untraced(root: nn.Module, blocks: Blocks, error: Exception, on_real_values: bool) -> str:
    found = f"up to its last block, {blocks.names[-1]} ({type(error).__name__}: {error})"
    if on_real_values:
        return (
            f"the step of {type(root).__name__} could not be run on its first microbatch {found}. HINT: train with one"
            " process first."
        )
    return (
        f"the step of {type(root).__name__} could not be traced on shapes {found}. HINT: if control flow depends on values"
        " that are computed with parameters, leave delayed_parameter_initialization out."
    )


class ReplacedForwards:
    """Modules whose ``forward`` is temporarily replaced; it may already have been an instance attribute."""

    def __init__(self) -> None:
        self._before: list[tuple[nn.Module, Any]] = []

    def replace(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        """Replace the ``forward`` of ``module``."""
        self._before.append((module, vars(module).get("forward")))
        module.forward = forward

    def restore(self) -> None:
        """Restore all, in reverse order."""
        for module, own in reversed(self._before):
            if own is None:
                del module.forward
            else:
                module.forward = own
        self._before.clear()


class _Tracer(TorchFunctionMode):
    """Records the region of each use of a parameter, and which tensors depend on parameters of which region."""

    def __init__(self, root: nn.Module, blocks: Blocks) -> None:
        super().__init__()
        self._root, self._blocks = root, blocks
        self._all = {id(parameter) for parameter in root.parameters()}
        self._uses: dict[int, set[int]] = defaultdict(set)
        self._calls: dict[int, int] = {}
        self._running: set[int] = set()  # running modules when the last block returned
        self._crossings: set[tuple[int, int]] = set()
        self._inputs: list[Tensor] = []  # of the last block; must not be freed, or other tensors could get their ids
        self._carried: dict[int, set[int]] = defaultdict(set)
        self._outputs: list[Any] = []
        self._shapes: set[tuple[torch.Size, ...]] = set()
        self._stack: list[nn.Module] = []
        self._outer: nn.Module | None = None
        self._is_inside = False  # a block is running
        self.region = 0
        self.is_after = False
        """Whether the last block has returned; the code after it is of its region."""

    def traced(self, index: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        """``forward`` of a block, wrapped to record the call."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if index != self.region or self.is_after:
                names = self._blocks.names
                expected = "nothing" if self.is_after else names[self.region]
                raise ParallelConfigError(
                    f"{names[index]} was called where {expected} was expected. HINT: a partitioned model must call each"
                    " of its blocks once, in order."
                )
            if index == 0 and self._stack[0] is not self._blocks.modules[0]:
                self._outer = self._stack[0]
            if index + 1 == len(self._blocks) and self._outer not in self._stack:
                self._outer = None
            self._is_inside = True
            output = forward(*args, **kwargs)
            self._is_inside = False
            self._inputs = tensors_of((args, kwargs))
            self._shapes.add(tuple(tensor.shape for tensor in tensors_of(output)))
            self.region += 1
            leaves, _ = pytree.tree_flatten(output)
            for leaf in leaves:
                if isinstance(leaf, Tensor):
                    setattr(leaf, _BIRTH, self.region)
            count = iter(range(len(leaves)))
            self._outputs.append(pytree.tree_map_only(Tensor, lambda _: TensorNumber(next(count)), output))
            if self.region == len(self._blocks):
                self._running = {id(module) for module in self._stack}
                self.is_after, self.region = True, index
                if len(self._stack) == 1 and self._stack[0] is self._blocks.modules[-1]:
                    raise _TraceDone  # the step calls it
            return output

        return run

    def called(self, module: nn.Module, _: Any) -> None:
        """Forward pre-hook: a module is about to run."""
        if not self.is_after:
            self._calls.setdefault(id(module), self.region)
        self._stack.append(module)

    def returned(self, *_: Any) -> None:
        """Forward hook: a module has run."""
        self._stack.pop()
        if self.is_after and not self._stack:
            raise _TraceDone

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        leaves = pytree.arg_tree_leaves(*args, **(kwargs or {}))
        known = [birth for birth in map(self._birth, leaves) if birth is not None]
        if known and func in DATA_DEPENDENT and not self._is_inside and not self.is_after:
            raise ParallelConfigError(
                f"code outside the blocks of {self._blocks.name} depends on values that are computed with parameters, which"
                " other pipeline stages do not have. HINT: let such code be part of a block, or come after the last one."
            )
        on_shapes = any(isinstance(leaf, FakeTensor) or id(leaf) in self._all for leaf in leaves)
        with contextlib.nullcontext() if on_shapes else unset_fake_temporarily():
            result = on_shapes_of(func)(*args, **(kwargs or {}))
        if known:
            oldest = min(known)
            tensors = [leaf for leaf in tensors_of(result) if id(leaf) not in self._all]
            if tensors and oldest < self.region:
                self._crossings.add((oldest, self.region))
            for tensor in tensors:
                setattr(tensor, _BIRTH, oldest)
        return result

    def _birth(self, leaf: Any) -> int | None:
        if id(leaf) in self._all:
            self._uses[id(leaf)].add(self.region)
            return self.region
        birth: int | None = getattr(leaf, _BIRTH, None) if isinstance(leaf, Tensor) else None
        if birth is not None and birth < self.region:
            for number, tensor in enumerate(self._inputs):
                if tensor is leaf and self.is_after:
                    return self.region
                if tensor is leaf:
                    self._carried[self.region - 1].add(number)
                    return self.region
        return birth

    def result(self) -> Trace:
        last = len(self._blocks) - 1
        is_used_after = False  # whether the step may use parameters of the outermost module after its call
        inside = {id(module): index for index, block in enumerate(self._blocks.modules) for module in block.modules()}
        for owner in self._root.modules():
            for uses in (self._uses[id(parameter)] for parameter in owner.parameters(recurse=False)):
                if id(owner) not in self._calls:  # it is part of a block, or of the code after the last one
                    uses.add(inside.get(id(owner), last))
                elif not uses:  # its code took a path without this one, or uses it after the last block
                    uses.add(last if id(owner) in self._running else self._calls[id(owner)])
                    is_used_after = is_used_after or owner is self._outer
        regions = {
            name: tuple(sorted(self._uses[id(parameter)]))
            for name, parameter in self._root.named_parameters(remove_duplicate=False)
        }
        outer = next((name for name, module in self._root.named_modules() if module is self._outer), None)
        if outer is not None:
            held = {id(parameter) for parameter in self._root.get_submodule(outer).parameters()}
            outer = outer if held == self._all and not is_used_after else None
        carried = tuple(tuple(sorted(self._carried[index])) for index in range(len(self._blocks)))
        called = {
            name: self._calls[id(module)]
            for name, module in self._root.named_modules(remove_duplicate=False)
            if id(module) in self._calls and id(module) not in self._running
        }
        return Trace(
            regions,
            tuple(self._outputs),
            carried,
            outer,
            tuple(sorted(self._crossings)),
            len(self._shapes) == 1,
            called,
        )


@dataclass(frozen=True)
class TensorNumber:
    """Placeholder of a tensor in the structure of a block's output."""

    number: int


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in arguments or results, in a fixed order."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
