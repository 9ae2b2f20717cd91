# SPDX-License-Identifier: Apache-2.0
"""Values that a stage does not have: NaN of the right shape; using them in the stage's own part is an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lightning_sagemaker._compat import pytree
from lightning_sagemaker.parallel.degrees import PipelineError
from lightning_sagemaker.parallel.functions import DATA_DEPENDENT, reads_integers
from lightning_sagemaker.parallel.inputs import gives_view, shape_of
from lightning_sagemaker.parallel.trace import tensors_of

_MARK = "_lightning_sagemaker_absent"
"""Attribute of a tensor that was computed from parameters which this process does not have."""


class Absent(TorchFunctionMode):
    """Mode in which functions of parameters that this process does not have return NaN of the right shape.

    Args:
        shapes: Identity of each such parameter -> its shape, on the meta device.

    Attributes:
        is_over: Whether the stage's own part has begun: from then on only the shapes of such values may be used.

    """

    def __init__(self, shapes: Mapping[int, Tensor]) -> None:
        super().__init__()
        self._shapes = shapes
        self.is_over = False

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        leaves = pytree.arg_tree_leaves(*args, **kwargs)
        absent = [leaf for leaf in leaves if id(leaf) in self._shapes]
        if not absent:
            result = func(*args, **kwargs)
            if any(map(is_marked, leaves)):
                if self.is_over and not gives_view(func, args, kwargs):
                    _refuse(func, result)
                else:
                    mark(args[:1] if func is Tensor.__setitem__ else result)
            return result
        device = absent[0].device
        shape_of = self._unless_integer if reads_integers(func) else self._shape_of
        args, kwargs = pytree.tree_map_only(Tensor, shape_of, (args, kwargs))  # without reading inputs
        result = func(*args, **kwargs)
        if self.is_over:
            _refuse(func, result)
        return pytree.tree_map_only(Tensor, lambda tensor: nothing(tensor.shape, tensor.dtype, device), result)

    def _shape_of(self, tensor: Tensor) -> Tensor:
        shape = self._shapes.get(id(tensor))
        return shape_of(tensor) if shape is None else shape

    def _unless_integer(self, tensor: Tensor) -> Tensor:
        return self._shape_of(tensor) if tensor.dtype.is_floating_point else tensor


def nothing(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A marked tensor of NaN, or of zeros for types without NaN."""
    tensor = torch.full(shape, float("nan") if dtype.is_floating_point else 0, dtype=dtype, device=device)
    mark(tensor)
    return tensor


def mark(value: object) -> None:
    """Mark all tensors in a value."""
    for tensor in tensors_of(value):
        setattr(tensor, _MARK, True)


def is_marked(leaf: object) -> bool:
    """Whether a leaf is a tensor with the mark."""
    return isinstance(leaf, Tensor) and getattr(leaf, _MARK, False)


def fill(tensor: Tensor, values: Tensor) -> None:
    """Copy the real values into a marked tensor and remove its mark."""
    tensor.copy_(values)
    setattr(tensor, _MARK, False)


def check(value: object, what: str) -> None:
    """Raise if a tensor in ``value`` is marked.

    Raises:
        PipelineError: If one is.

    """
    if any(map(is_marked, tensors_of(value))):
        raise _used(what)


def _refuse(func: Callable[..., object], result: object) -> None:
    if func in DATA_DEPENDENT or tensors_of(result):
        raise _used(getattr(func, "__name__", str(func)))


def _used(what: str) -> PipelineError:
    return PipelineError(
        f"the step uses ({what}) a value which an earlier pipeline stage has computed and which does not pass through the"
        " blocks of the model, such as a hidden state of each layer. HINT: return it from each block, compute it after the"
        " model's call, or set partitions to 1, and tensor_parallel_degree or sharded_data_parallel_degree instead."
    )
