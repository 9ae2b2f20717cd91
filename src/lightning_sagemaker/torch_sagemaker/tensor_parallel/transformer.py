# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.tensor_parallel.transformer``: names for the layers that :func:`~..transform` has changed."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from lightning_sagemaker.torch_sagemaker.refusal import Refused

_MARK = "_smp_transformed"


def mark(layers: Iterable[nn.Module]) -> None:
    """Make these layers instances of :class:`TransformerLayer` for ``isinstance``."""
    for layer in layers:
        setattr(layer, _MARK, True)


class _Marked(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return _MARK in getattr(instance, "__dict__", {})


class TransformerLayer(Refused, metaclass=_Marked):
    """For ``isinstance`` and wrapping policies: a layer that ``tsm.transform`` has changed, of any class."""


class TETransformerLayer(TransformerLayer):
    """As :class:`TransformerLayer`."""
