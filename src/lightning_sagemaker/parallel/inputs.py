# SPDX-License-Identifier: Apache-2.0
"""Records which tensors of a batch a stage reads in its first step; later steps send it only those."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lightning_sagemaker._compat import pytree

_VIEWS = frozenset(
    {
        *(
            getattr(Tensor, name)
            for name in ("to", "float", "half", "bfloat16", "long", "int", "detach", "contiguous", "clone")
        ),
        *(getattr(Tensor, name) for name in ("__getitem__", "view", "unflatten", "expand", "type")),
        *(
            getattr(owner, name)
            for name in ("chunk", "narrow", "split", "unbind", "flatten", "reshape", "permute", "transpose", "movedim")
            for owner in (Tensor, torch)
        ),
        *(getattr(owner, name) for name in ("squeeze", "unsqueeze", "t") for owner in (Tensor, torch)),
    }
)
"""Functions that return a view: the tensor counts as read only when another function uses the view."""
_SHAPES = frozenset(
    {
        *(getattr(Tensor, name) for name in ("size", "dim", "numel", "stride", "__len__", "is_floating_point")),
        *(
            getattr(Tensor, name).__get__
            for name in ("shape", "ndim", "dtype", "device", "layout", "requires_grad", "is_meta", "is_cuda", "nbytes")
        ),
    }
)
"""Functions that do not read a tensor's values."""


class NotSentError(RuntimeError):
    """A stage reads a tensor that it did not read in its first step; the message has the fix."""


class NotSent(Tensor):
    """Stands for a tensor that was not sent: it has a shape and a dtype, and no values."""

    @classmethod
    def of(cls, shape: Sequence[int], dtype: torch.dtype) -> NotSent:
        """A tensor of the given shape and dtype."""
        return torch.empty((), dtype=dtype).expand(torch.Size(shape)).as_subclass(cls)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"NotSent({tuple(self.shape)})"

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func is Tensor.clone:
            return args[0]  # no copy is needed, as nothing can be written into it
        if not gives_view(func, args, kwargs) and func not in _SHAPES:
            raise NotSentError(
                f"this pipeline stage reads ({getattr(func, '__name__', func)}) a tensor of the batch that it did not read"
                " in the first step of this kind, so it was not sent. HINT: pass SMPStrategy(whole_batches=True)."
            )
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return pytree.tree_map_only(Tensor, _not_sent, result) if func in _VIEWS else result


def _not_sent(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(NotSent)


def gives_view(func: object, args: Sequence[object], kwargs: Mapping[str, object] | None) -> bool:
    """Whether a function returns a view of its tensor."""
    leaves = pytree.arg_tree_leaves(*args, **(kwargs or {}))
    return func in _VIEWS and sum(isinstance(leaf, Tensor) for leaf in leaves) == 1


def shape_of(tensor: Tensor) -> Tensor:
    """A tensor of the same shape on the meta device; ``tensor`` is not read."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


class Reads(TorchFunctionMode):
    """Mode that records which tensors of a batch are read.

    Args:
        parts: The tensors of each microbatch, in the order of the batch's.

    """

    def __init__(self, parts: Sequence[Sequence[Tensor]]) -> None:
        super().__init__()
        self._numbers = {id(tensor): number for part in parts for number, tensor in enumerate(part)}
        self._views: list[Tensor] = []  # must not be freed, or other tensors could get their ids
        self.found: set[int] = set()

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        if func in _SHAPES:
            return result
        leaves = pytree.arg_tree_leaves(*args, **(kwargs or {}))
        numbers = {self._numbers[id(leaf)] for leaf in leaves if id(leaf) in self._numbers}
        if numbers and gives_view(func, args, kwargs):
            views = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
            self._views += views
            self._numbers |= {id(view): min(numbers) for view in views}
        else:
            self.found |= numbers
        return result

    def record_result(self, value: object) -> None:
        """Record the tensors in a step's return value or in its logged values as read."""
        leaves = pytree.tree_leaves(value)
        self.found.update(self._numbers[id(leaf)] for leaf in leaves if id(leaf) in self._numbers)
