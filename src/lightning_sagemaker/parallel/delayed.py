# SPDX-License-Identifier: Apache-2.0
"""Parameters that are shapes only, on the meta device, until it is known which stage needs them."""

from __future__ import annotations

import functools
import gc
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from lightning_sagemaker.parallel.allocator import give_back
from lightning_sagemaker.parallel.initializers import initial_values
from lightning_sagemaker.parallel.tape import Tape

_recording: list[Tape] = []
_VALUE = "_lightning_sagemaker_value"
"""Attribute of a parameter on the meta device: what gives its values."""


@contextmanager
def delayed_parameters() -> Iterator[None]:
    """Parameters that are made within are on the meta device afterwards, and get their values when a stage needs them.

    The values, and the random numbers that are drawn afterwards, are those that they would have without it, to the last
    bit. At most one large parameter is in memory at a time, beside a few that were used lately. Buffers stay. Within
    itself it does nothing.
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
        give_back()


def is_delayed(module: nn.Module) -> bool:
    """Whether parameters or buffers of a module are on the meta device."""
    return any(tensor.is_meta for tensor in [*module.parameters(), *module.buffers()])


def check(module: nn.Module) -> None:
    """Refuse a module with parameters on the meta device of which nothing says what they are.

    Raises:
        ParallelConfigError: If there are such.

    """
    initial_values(module, _is_unknown)


@contextmanager
def loading(module: nn.Module, state: Mapping[str, object]) -> Iterator[None]:
    """Around ``module.load_state_dict(state)``: parameters on the meta device have these values when they get any.

    They are not read before, so a mapped file costs no memory.

    Args:
        module: The module.
        state: Names that it lacks keep what they had.

    """
    _note_values(module, state)
    with warnings.catch_warnings():  # one for each parameter that nothing was loaded into it
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


def value_of(tensor: Tensor) -> Tensor:
    """The values of a parameter, also of one on the meta device of which :func:`prepare` knows."""
    if not tensor.is_meta:
        return tensor.detach()
    value: Tensor = vars(tensor)[_VALUE]()
    return value.to(tensor.dtype)


def whole_state(module: nn.Module, state: Mapping[str, object]) -> dict[str, object]:
    """``module.state_dict()`` with the values of parameters on the meta device."""
    prepare(module)
    named = dict(module.named_parameters(remove_duplicate=False))
    values = {id(parameter): value_of(parameter) for parameter in module.parameters() if parameter.is_meta}
    return {name: values.get(id(named.get(name)), value) for name, value in state.items()}


def prepare(root: nn.Module) -> None:
    """Give buffers on the meta device their values, and find out how parameters that a script has put there get theirs.

    Raises:
        ParallelConfigError: If nothing says what they are.

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
    """Give parameters on the meta device their values.

    Args:
        root: Contains them.
        wanted: Whether one of a name gets them.

    Raises:
        ParallelConfigError: If nothing says what they are.

    """
    prepare(root)
    for name, parameter in root.named_parameters():
        if parameter.is_meta and wanted(name):
            _exchange(parameter, value_of(parameter))
    give_back()


def free(parameter: nn.Parameter) -> None:
    """Leave a parameter without any numbers."""
    if parameter.is_meta:
        _exchange(parameter, torch.empty(0, dtype=parameter.dtype))
    else:
        parameter.data = parameter.data.new_empty(0)
    parameter.grad = None


@contextmanager
def on_shapes(root: nn.Module) -> Iterator[FakeTensorMode]:
    """Parameters on the meta device look like those of a processor within, where the model runs on shapes."""
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
        _exchange(parameter, torch.empty_like(parameter, device="meta"))
    except RuntimeError:  # something refers to it that would not see the change: it stays in memory
        return
    vars(parameter)[_VALUE] = value


@torch.no_grad()
def _exchange(parameter: nn.Parameter, value: Tensor) -> None:
    """Let a parameter, which stays the same object with the same attributes, be another tensor."""
    kept = {name: attribute for name, attribute in vars(parameter).items() if name != _VALUE}
    torch.utils.swap_tensors(parameter, nn.Parameter(value, parameter.requires_grad))  # type: ignore[no-untyped-call]
    vars(parameter).update(kept)
