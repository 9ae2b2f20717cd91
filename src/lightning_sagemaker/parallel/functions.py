# SPDX-License-Identifier: Apache-2.0
"""torch functions that need special treatment when tracing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

DATA_DEPENDENT = frozenset({Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.nonzero, torch.nonzero}) | frozenset(
    getattr(Tensor, f"__{name}__") for name in ("bool", "int", "float", "index")
)
"""Functions that read a tensor's values, as code does that branches on them."""

_RECURRENT = frozenset({"gru", "lstm", "rnn_relu", "rnn_tanh"})


def reads_integers(func: Callable[..., Any]) -> bool:
    """Whether a function reads the values of its integers on shapes too: packed sequences have their lengths there."""
    return getattr(func, "__name__", "") in _RECURRENT


@contextmanager
def by_modules() -> Iterator[None]:
    """Context in which torch's encoder layers call their modules and pass on plain tensors, in an evaluation too.

    There they would compute a layer by one function, on nested tensors if there is a padding mask: neither can be split, and
    these cannot be sent.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def on_shapes_of(func: Callable[..., Any]) -> Callable[..., Any]:
    """``func``, or a replacement where torch cannot run it on fake tensors.

    torch computes a mixture of experts' grouped matrix product in any dtype, but its shape function supports bfloat16 only
    (torch 2.13, ``_meta_grouped_mm_common``).
    """
    if getattr(func, "__name__", "").strip("_") != "grouped_mm":
        return func

    def product(rows: Tensor, matrices: Tensor, *args: Any, **options: Any) -> Any:
        if isinstance(rows, FakeTensor) and (rows.dim(), matrices.dim()) == (2, 3):
            return rows.new_empty(rows.shape[0], matrices.shape[-1], dtype=options.get("out_dtype"))
        return func(rows, matrices, *args, **options)

    return product
