# SPDX-License-Identifier: Apache-2.0
"""Modules with the parameters of known models that sleep where those compute."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

LAYER = [(768, 768), (768,)] * 4 + [(3072, 768), (3072,), (768, 3072), (768,)] + [(768,)] * 4
ALBERT = [[(30000, 128), (512, 128), (2, 128), (128,), (128,), (768, 128), (768,), *LAYER, (768, 768), (768,)]]
BERT = [[(30522, 768), (512, 768), (2, 768), (768,), (768,)]] + [LAYER] * 12
MODELS = {
    "albert": [*ALBERT, [(128, 768), (128,), (128,), (128,), (30000,)]],
    "bert": [*BERT, [(768, 768), (768,), (768,), (768,), (30522,)]],
}
"""Shapes of the parameters, by what is ready together in the backward pass; the last is ready first."""


def stand_in(shapes: list, seconds: Callable[[], float]) -> torch.nn.Module:
    """A module with such parameters that sleeps a third of a step in its forward pass, and two in its backward pass."""
    kept: dict[tuple, torch.Tensor] = {}
    is_layer = [(3072, 768) in part for part in shapes]

    class Part(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, share, *parameters):
            ctx.share, ctx.shapes = share, [parameter.shape for parameter in parameters]
            time.sleep(seconds() * share / 3)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            time.sleep(seconds() * ctx.share * 2 / 3)
            for shape in ctx.shapes:
                if shape not in kept:
                    kept[shape] = torch.randn(shape) * 1e-3
            return gradient, None, *(kept[shape] for shape in ctx.shapes)

    class StandIn(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleList(
                torch.nn.ParameterList(torch.zeros(shape) for shape in part) for part in shapes
            )

        def forward(self):
            x = torch.zeros((), requires_grad=True)
            for part, computes in zip(self.parts, is_layer, strict=True):
                x = Part.apply(x, computes / sum(is_layer), *part)
            return x

    return StandIn()
