# SPDX-License-Identifier: Apache-2.0
"""Parameters that stay on the meta device until it is known which stage needs them."""

from __future__ import annotations

import functools
import gc
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from lightning_sagemaker.parallel.allocator import trim_heap
from lightning_sagemaker.parallel.initializers import initial_values
from lightning_sagemaker.parallel.tape import Tape

_recording: list[Tape] = []
_VALUE = "_lightning_sagemaker_value"
"""Attribute of a parameter on the meta device: the function that computes its values."""


@contextmanager
def delayed_parameters() -> Iterator[None]:
    """Context: parameters that are created in it are moved to the meta device, and materialized when a stage needs them.

    Their values, and the random numbers that are drawn afterwards, are the same as without it, to the last
    bit. At most one large parameter is in memory at a time, plus a few that were used recently. Buffers are not moved.
    Nested, it does nothing.
    """
    if _recording:
        yield
        return
    tape = Tape()
    _recording.append(tape)
    try:
        with tape:
            yield
    finally:
        _recording.clear()
        for found in gc.get_objects():
            if type(found) is nn.Parameter and not found.is_meta and tape.knows(found):
                _delay(found, functools.partial(tape.value, tape.ref(found)))
        tape.fill_all()
        trim_heap()


def is_delayed(module: nn.Module) -> bool:
    """Whether parameters or buffers of a module are on the meta device."""
    return any(tensor.is_meta for tensor in [*module.parameters(), *module.buffers()])


def check(module: nn.Module) -> None:
    """Raise if a module has parameters on the meta device whose values are unknown.

    Raises:
        ParallelConfigError: If there are any.

    """
    initial_values(module, _is_unknown)


@contextmanager
def loading(module: nn.Module, state: Mapping[str, object]) -> Iterator[None]:
    """Context for ``module.load_state_dict(state)``: parameters on the meta device take these values when materialized.

    The values are not read before, so a memory-mapped file costs no memory.

    Args:
        module: The module.
        state: State dict; parameters that it lacks keep their values.

    """
    _note_values(module, state)
    with warnings.catch_warnings():  # torch warns for each parameter on the meta device
        warnings.filterwarnings("ignore", message=".*which is a no-op")
        yield


def _note_values(module: nn.Module, state: Mapping[str, object]) -> None:
    for name, parameter in module.named_parameters(remove_duplicate=False):
        value = state.get(name)
        if parameter.is_meta and isinstance(value, Tensor):
            vars(parameter)[_VALUE] = functools.partial(torch.clone, value.detach())
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for name, buffer in owner.named_buffers(recurse=False):
            value = state.get(f"{prefix}.{name}" if prefix else name)
            if buffer.is_meta and isinstance(value, Tensor):
                owner._buffers[name] = value.clone()


def _value_of(tensor: Tensor) -> Tensor:
    """The values of a parameter, also on the meta device if it was delayed or :func:`prepare` was called."""
    if not tensor.is_meta:
        return tensor.detach()
    value: Tensor = vars(tensor)[_VALUE]()
    return value.to(tensor.dtype)


def full_state(module: nn.Module, state: Mapping[str, object]) -> dict[str, object]:
    """``module.state_dict()`` with the values of parameters on the meta device."""
    prepare(module)
    named = dict(module.named_parameters(remove_duplicate=False))
    values = {id(parameter): _value_of(parameter) for parameter in module.parameters() if parameter.is_meta}
    return {name: values.get(id(named.get(name)), value) for name, value in state.items()}


def prepare(root: nn.Module) -> None:
    """Materialize buffers on the meta device, and determine the initial values of parameters that a script put there.

    Raises:
        ParallelConfigError: If the values of one are unknown.

    """
    values = initial_values(root, _is_unknown)
    for module in root.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                module._buffers[name] = values[id(buffer)]()
        for parameter in module.parameters(recurse=False):
            if id(parameter) in values:
                vars(parameter)[_VALUE] = values[id(parameter)]


def materialize(root: nn.Module, wanted: Callable[[str], bool] = lambda _: True) -> None:
    """Materialize parameters that are on the meta device.

    Args:
        root: Module that contains them.
        wanted: Name of a parameter -> whether it is materialized.

    Raises:
        ParallelConfigError: If the values of one are unknown.

    """
    prepare(root)
    for name, parameter in root.named_parameters():
        if parameter.is_meta and wanted(name):
            _swap(parameter, _value_of(parameter))
    trim_heap()


def free(parameter: nn.Parameter) -> None:
    """Free a parameter's memory; the parameter object stays."""
    if parameter.is_meta:
        _swap(parameter, torch.empty(0, dtype=parameter.dtype))
    else:
        parameter.data = parameter.data.new_empty(0)
    parameter.grad = None


@contextmanager
def on_shapes(root: nn.Module) -> Iterator[FakeTensorMode]:
    """Context that runs a model on shapes, in which parameters on the meta device appear to be on the CPU."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    stand_ins: dict[int, nn.Parameter] = {}
    before: list[tuple[nn.Module, str, nn.Parameter]] = []
    for module in root.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if not parameter.is_meta:
                continue
            if id(parameter) not in stand_ins:
                with fake:
                    shape = torch.empty_strided(parameter.size(), parameter.stride(), dtype=parameter.dtype)
                stand_ins[id(parameter)] = nn.Parameter(shape, parameter.requires_grad)
            before.append((module, name, parameter))
            module._parameters[name] = stand_ins[id(parameter)]
    try:
        yield fake
    finally:
        for module, name, parameter in before:
            module._parameters[name] = parameter


def _is_unknown(tensor: Tensor) -> bool:
    return tensor.is_meta and _VALUE not in vars(tensor)


def _delay(parameter: nn.Parameter, value: Callable[[], Tensor]) -> None:
    try:
        _swap(parameter, torch.empty_like(parameter, device="meta"))
    except RuntimeError:  # another reference to its storage would not see the change: it stays in memory
        return
    vars(parameter)[_VALUE] = value


@torch.no_grad()
def _swap(parameter: nn.Parameter, value: Tensor) -> None:
    """Replace a parameter's tensor; the parameter stays the same object with the same attributes."""
    kept = {name: attribute for name, attribute in vars(parameter).items() if name != _VALUE}
    torch.utils.swap_tensors(parameter, nn.Parameter(value, parameter.requires_grad))  # type: ignore[no-untyped-call]
    vars(parameter).update(kept)
