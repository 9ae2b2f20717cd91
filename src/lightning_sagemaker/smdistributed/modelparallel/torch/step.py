# SPDX-License-Identifier: Apache-2.0
"""``@smp.step``: runs a function for each microbatch, and combines the results."""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from lightning_sagemaker.parallel.containers import like, map_tensors
from lightning_sagemaker.parallel.microbatches import split
from lightning_sagemaker.smdistributed.modelparallel.torch.joined import JoinedBatches, is_joined
from lightning_sagemaker.smdistributed.modelparallel.torch.state_mod import state

if TYPE_CHECKING:
    from lightning_sagemaker._types import StateDict


class StepOutput:
    """A tensor that the step returned, once for each microbatch.

    Attributes:
        outputs: The tensors.

    """

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self.outputs = list(outputs)

    def reduce_mean(self) -> Tensor:
        """Mean over the microbatches; of integers, such as counts of correct answers, in torch's default type."""
        stacked = torch.stack(self.outputs)
        fractions = stacked.is_floating_point() or stacked.is_complex()
        return stacked.mean(0, dtype=None if fractions else torch.get_default_dtype())

    def reduce_sum(self) -> Tensor:
        """Sum over the microbatches."""
        return torch.stack(self.outputs).sum(0)

    def concat(self) -> Tensor:
        """The tensors concatenated along the first dimension."""
        return torch.cat(self.outputs)

    def stack(self) -> Tensor:
        """The tensors stacked along a new first dimension."""
        return torch.stack(self.outputs)

    def __repr__(self) -> str:
        return f"StepOutput({self.outputs!r})"


class _Step:
    """The decorated function. Not a function, so that it does not become a method where a class holds it, as AWS's."""

    def __init__(
        self,
        function: Callable[..., object],
        non_split_inputs: Sequence[str] = (),
        input_split_axes: Mapping[str, int] | None = None,
        detach_outputs: bool = True,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._signature = inspect.signature(function)
        self._check("non_split_inputs", non_split_inputs, list | tuple | set | frozenset, "a list, such as ['mask']")
        self._check("input_split_axes", input_split_axes, Mapping, "a dict, such as {'images': 1}")
        self._whole, self._axes = frozenset(non_split_inputs or ()), dict(input_split_axes or {})
        self._detach = detach_outputs

    def _check(self, option: str, given: Iterable[str] | None, kind: type | UnionType, form: str) -> None:
        """Refuse names that are no arguments: they would be split after all, or along another axis."""
        parameters = self._signature.parameters.values()
        known = None if any(one.kind is one.VAR_KEYWORD for one in parameters) else {one.name for one in parameters}
        if given and not isinstance(given, kind):
            raise TypeError(f"@smp.step({option}={given!r}) was set. HINT: set {form}.")
        unknown = [name for name in given or () if known is not None and name not in known]
        if unknown:
            raise ValueError(
                f"@smp.step({option}={given!r}) names {', '.join(map(repr, unknown))}, but the arguments of"
                f" {self._function.__name__} are {', '.join(one.name for one in parameters)}. HINT: correct the name."
            )

    def __call__(self, *args: object, **kwargs: object) -> object:
        bound = self._signature.bind(*args, **kwargs)
        arguments = _of_first_stage(dict(bound.arguments))
        arguments = moved(arguments, state.device)
        count = state.cfg.degrees.microbatches if state.cfg is not None else 1
        parts: dict[str, list[object]] = {}
        for name, value in arguments.items():
            if name in self._whole:
                parts[name] = [value] * count
            else:
                parts[name] = self._split(name, value, count)
        microbatches = [{name: values[number] for name, values in parts.items()} for number in range(count)]
        joined = JoinedBatches(microbatches, self._whole, self._axes) if is_joined() else None
        results = self._run(microbatches if joined is None else joined.microbatches)
        results = results if joined is None else joined.own_rows(results)
        return _combine([_detached(result) for result in results] if self._detach else results)

    def _split(self, name: str, value: object, count: int) -> list[object]:
        """Split an argument into microbatches; entries of ``**kwargs`` are split one by one."""
        kind = self._signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            assert isinstance(value, Mapping)
            pieces = {
                key: [entry] * count if key in self._whole else split(entry, count, self._axes.get(key, 0), key)
                for key, entry in value.items()
            }
            return [{key: piece[number] for key, piece in pieces.items()} for number in range(count)]
        return split(value, count, self._axes.get(name, 0), name)

    def _call(self, microbatch: Mapping[str, object]) -> object:
        bound = inspect.BoundArguments(self._signature, OrderedDict(microbatch))
        return self._function(*bound.args, **bound.kwargs)

    def _run(self, microbatches: Sequence[Mapping[str, object]]) -> list[object]:
        model = state.model
        if model is None:
            raise RuntimeError(
                f"@smp.step ran {self._function.__name__}, but there is no smp.DistributedModel. HINT: wrap the model, and"
                " call model.backward(loss) in the step."
            )
        results: list[object] = model.run_step(self._call, microbatches)
        return results


def step(
    function: Callable[..., object] | Sequence[str] | None = None,
    non_split_inputs: Sequence[str] = (),
    input_split_axes: Mapping[str, int] | None = None,
    detach_outputs: bool = True,
) -> Any:
    """Run a function for each microbatch: ``@smp.step`` or ``@smp.step(...)``.

    Tensors among its arguments, also within lists, tuples, sets and mappings, are split into equal parts. The function
    calls the model and then ``model.backward(loss)``. Its results are returned on all ranks: tensors as
    :class:`StepOutput`, lists, tuples and mappings as the same kind of container, everything else as a list with an
    entry for each microbatch.

    The first stage's tensors are used on all stages. On other stages than the last, the function is left after the
    stage's part of the model, so a script should rely on the returned results only.

    Args:
        function: The step; in ``@smp.step(...)``, the first of the options, as AWS documents them.
        non_split_inputs: Names of arguments that are not split.
        input_split_axes: Name -> axis to split, if not the first.
        detach_outputs: Detach returned tensors.

    Raises:
        TypeError: If an option has the wrong type.
        ValueError: If a name is not that of an argument.

    """
    if callable(function):
        return _Step(function, non_split_inputs, input_split_axes, detach_outputs)
    if function is not None:
        second = cast("Mapping[str, int] | None", non_split_inputs or None)
        non_split_inputs, input_split_axes = function, input_split_axes or second
    return functools.partial(
        _Step,
        non_split_inputs=non_split_inputs,
        input_split_axes=input_split_axes,
        detach_outputs=detach_outputs,
    )


def _of_first_stage(arguments: StateDict) -> StateDict:
    """``arguments`` with the tensors of the first stage, the only one that needs to read the data."""
    ranks = state.groups.pipeline_ranks
    if len(ranks) == 1:
        return arguments
    tensors: list[Tensor] = []
    map_tensors(arguments, lambda tensor: tensors.append(tensor))
    shared = state.groups.inputs.share(tensors)
    if shared is tensors:
        return arguments
    assert isinstance(shared, list)
    found = iter(shared)
    replaced: StateDict = map_tensors(arguments, lambda _: next(found))
    return replaced


T = TypeVar("T")


def moved(value: T, device: torch.device) -> T:
    """``value`` with its tensors on ``device``."""
    found: T = map_tensors(value, lambda tensor: tensor.to(device))
    return found


def _detached(value: object) -> object:
    return map_tensors(value, lambda tensor: tensor.detach())


def _combine(results: list[Any]) -> object:
    first = results[0]
    if isinstance(first, Tensor):
        return StepOutput(results)
    if isinstance(first, Mapping):
        return like(first, {key: _combine([result[key] for result in results]) for key in first})
    if isinstance(first, list | tuple):
        return like(first, [_combine(list(column)) for column in zip(*results, strict=True)])
    return results
