# SPDX-License-Identifier: Apache-2.0
"""A script's settings of its modules: partitions, tensor parallelism, activation checkpointing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TypeVar

import torch
from torch import nn
from torch.utils import checkpoint

from lightning_sagemaker.parallel.blocks import Blocks, find_blocks
from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.parallel.delayed import delayed_parameters
from lightning_sagemaker.parallel.plans import tensor_plan
from lightning_sagemaker.smdistributed.modelparallel.torch.nn.layers import own_plan, plain_plan
from lightning_sagemaker.smdistributed.modelparallel.torch.patches.checkpoint import group_size
from lightning_sagemaker.smdistributed.modelparallel.torch.state_mod import state

T = TypeVar("T")


def set_partition(module: nn.Module, index: int) -> None:
    """Assign a module, including its submodules, to a partition; without effect if partitions are automatic.

    Args:
        module: A module of the model, before the first step.
        index: Number of the partition, from 0.

    Raises:
        ParallelConfigError: If there is no such partition.

    """
    pipeline = state.groups.degrees.pipeline
    if not 0 <= index < pipeline:
        raise ParallelConfigError(
            f"smp.set_partition(..., {index}) was called, but there are {pipeline} partitions."
            f" HINT: use 0 to {pipeline - 1}."
        )
    state.module_manager.assigned[module] = index


@contextmanager
def _each_new(note: Callable[[nn.Module], None]) -> Iterator[None]:
    """Call ``note`` with each module that is created within; of nested calls the innermost takes precedence."""
    make = nn.Module.__init__

    @functools.wraps(make)
    def make_and_note(self: nn.Module, *args: object, **kwargs: object) -> None:
        make(self, *args, **kwargs)
        note(self)

    nn.Module.__init__ = make_and_note  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__init__ = make  # type: ignore[method-assign]


def partition(index: int) -> AbstractContextManager[None]:
    """Assign the modules that are created within; the innermost context takes precedence."""
    return _each_new(lambda module: set_partition(module, index))


def tensor_parallelism(enabled: bool = True, **_: object) -> AbstractContextManager[None]:
    """Shard the matrices of modules created within across ``tensor_parallel_degree`` ranks, or, if false, do not."""
    return _each_new(functools.partial(_set_own, enabled))


def _set_own(enabled: bool, module: nn.Module) -> None:
    state.module_manager.shared[module] = enabled


def set_tensor_parallelism(module: nn.Module, enabled: bool = True, **_: object) -> None:
    """As :func:`tensor_parallelism`, for an existing module and its submodules."""
    for found in module.modules():
        _set_own(enabled, found)


def named_as_in_aws(module: nn.Module) -> nn.Module:
    """The model, whose blocks are reached as ``transformer.seq_layers`` too if the script enables tensor parallelism.

    These are the names in AWS's distributed transformers, which its samples use by default. The list is no submodule a
    second time: names of parameters stay.
    """
    if any(state.module_manager.shared.get(found) for found in module.modules()):
        with suppress(ParallelConfigError):  # no list of blocks
            name = find_blocks(module).name
            owner = module.get_submodule(name.rpartition(".")[0])
            vars(owner).setdefault("seq_layers", module.get_submodule(name))
            if not hasattr(module, "transformer"):
                vars(module)["transformer"] = owner
    return module


def shared_plan(module: nn.Module) -> dict[str, str]:
    """Path of each sharded matrix of the model -> how: layers of ``smp.nn``, and those of this package's plan.

    In a model that is not from transformers these are torch's linear layers and embeddings.

    Raises:
        ParallelConfigError: If there is no plan, or the script does not enable tensor parallelism for all its matrices.

    """
    degree = state.groups.degrees.tensor
    if degree == 1:
        return {}
    own = own_plan(module)
    if not any(hasattr(getattr(one, "config", None), "model_type") for one in module.modules()):
        own |= plain_plan(module, degree)
        if not own:
            raise ParallelConfigError(
                f"tensor_parallel_degree={degree} was set, but {type(module).__name__} has no layer to shard. HINT: enable"
                " tensor parallelism for torch's Linear or Embedding layers whose sizes are multiples of it, by"
                " smp.tensor_parallelism() or smp.set_tensor_parallelism(layer)."
            )
        return own
    plan, shared = tensor_plan(module, degree), state.module_manager.shared
    wanted = {path: style for path, style in plan.items() if shared.get(module.get_submodule(path), False)}
    if wanted.keys() != plan.keys():
        raise ParallelConfigError(
            f"tensor_parallel_degree={degree} was set, but the script enables tensor parallelism for {len(wanted)} of the"
            f" {len(plan)} matrices that can be sharded. HINT: create the model within smp.tensor_parallelism(), or call"
            " smp.set_tensor_parallelism(model)."
        )
    return {**plan, **own}


def delay_param_initialization(enabled: bool = True) -> AbstractContextManager[None]:
    """Initialize parameters created within on the processes that need them, so that none has the full model."""
    return delayed_parameters() if enabled else nullcontext()


@contextmanager
def model_creation(tensor_parallelism: bool = False, dtype: torch.dtype | None = None, **_: object) -> Iterator[None]:
    """Create modules with ``dtype`` within, and as within :func:`tensor_parallelism`.

    Also as within :func:`delay_param_initialization`, if the configuration has ``delayed_parameter_initialization``.
    """
    delays = state.cfg is not None and state.cfg.degrees.delayed
    before = torch.get_default_dtype()
    if dtype is not None:
        torch.set_default_dtype(dtype)
    try:
        with _each_new(functools.partial(_set_own, tensor_parallelism)), delay_param_initialization(delays):
            yield
    finally:
        torch.set_default_dtype(before)


def tp_register(*_: object, **__: object) -> Callable[[T], T]:
    """A decorator without effect: this package has its own plans of the matrices to shard."""
    return lambda module_class: module_class


def tp_register_with_module(*_: object, **__: object) -> None:
    """Without effect: this package has its own plans of the matrices to shard."""


def set_activation_checkpointing(
    module: nn.Module, preserve_rng_state: bool = True, pack_args_as_tuple: bool = False, strategy: str = "each"
) -> None:
    """Recompute a module's activations in the backward pass instead of keeping them.

    Args:
        module: A module of the model, before the first step.
        preserve_rng_state: Whether dropout is the same in both passes.
        pack_args_as_tuple: Without effect.
        strategy: How a ``Sequential`` is checkpointed: ``each`` child by itself; ``contiguous`` and ``group_N``: as one
            module. It is always each child with partitions, which may split it, and of a ``ModuleList``, which is never
            called itself.

    Raises:
        ParallelConfigError: If the strategy has another name.

    """
    group_size(strategy, 1)
    is_split = state.initialized and state.groups.degrees.pipeline > 1
    if isinstance(module, nn.ModuleList) or (isinstance(module, nn.Sequential) and (is_split or strategy == "each")):
        for child in module:
            set_activation_checkpointing(child, preserve_rng_state)
        return
    run = functools.partial(
        checkpoint.checkpoint, module.forward, use_reentrant=False, preserve_rng_state=preserve_rng_state
    )
    module.forward = run


def assigned_ends(module: nn.Module, blocks: Blocks) -> tuple[int, ...] | None:
    """The script's partition, from ``set_partition`` and ``partition``; None if ``auto_partition`` is set.

    Args:
        module: The model.
        blocks: Blocks between which it could be split.

    Raises:
        ParallelConfigError: If the blocks' partitions do not ascend from the first to the last one, or if a module that
            contains them is checkpointed, whose recomputation would need all partitions.

    """
    assert state.cfg is not None
    degrees = state.cfg.degrees
    above = {name[:end] for name in blocks.names for end in range(len(name)) if not end or name[end] == "."}
    for name in sorted(above if degrees.pipeline > 1 else ()):
        run = vars(module.get_submodule(name)).get("forward")
        if isinstance(run, functools.partial) and run.func is checkpoint.checkpoint:
            raise ParallelConfigError(
                f"smp.set_activation_checkpointing was called for {name or 'the model'}, which contains the partitions of"
                f" {blocks.name}. HINT: call it for each of the blocks."
            )
    if degrees.auto_partition:
        return None
    assigned = state.module_manager.assigned
    modules = dict(module.named_modules())
    places = []
    for name in blocks.names:
        parents = [modules[".".join(name.split(".")[:length])] for length in range(len(name.split(".")), 0, -1)]
        found = [assigned[parent] for parent in [*parents, module] if parent in assigned]
        places.append(found[0] if found else degrees.default_partition)
    starts = [places.index(stage) for stage in range(1, degrees.pipeline) if stage in places]
    ends = (*starts, len(places))
    if places != sorted(places) or len(ends) != degrees.pipeline or len(set(places)) != degrees.pipeline:
        raise ParallelConfigError(
            f"the blocks of {blocks.name} were assigned to partitions {places}. HINT: assign ascending partitions, each"
            f" from 0 to {degrees.pipeline - 1} at least once, or set auto_partition to true."
        )
    return ends
