# SPDX-License-Identifier: Apache-2.0
"""Determines which gradients an element's update depends on, by running the optimizer on two small matrices.

Each process of a pipeline updates its own parameters. Adam's update of an element depends on that element's gradient
alone; LAMB's and Adafactor's on the gradients of its matrix; L-BFGS's on the gradients of the full model.
"""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from lightning_sagemaker.parallel.degrees import ParallelConfigError

_SIZE = 4
_GRADIENTS = (10.0, 0.1)
"""Magnitudes of the test steps' gradients: some optimizers clip large ones."""


class Scope(Enum):
    """What the update of an element depends on."""

    NUMBER = "the element's own gradient"
    MATRIX = "the gradients of its matrix"
    MODEL = "the gradients of the full model"


def scope_of(optimizer: torch.optim.Optimizer) -> Scope | None:
    """Test another optimizer of the same class and options; this one and the random state are unchanged.

    Returns:
        The scope; None if another one cannot be built, or does not support plain steps (a closure, sparse gradients).

    """
    if isinstance(optimizer, torch.optim.LBFGS):
        return Scope.MODEL
    try:
        with torch.random.fork_rng(devices=[]):
            whole, other = _matrices()
            both = _step(optimizer, [whole, other])[0]
            alone = _step(optimizer, [whole])[0]
            rows = torch.cat(_step(optimizer, list(whole.chunk(2))))
            columns = torch.cat(_step(optimizer, list(whole.chunk(2, 1))), 1)
    except Exception:  # the class is unknown and may raise anything
        return None
    if not torch.allclose(both, alone, rtol=1e-4, atol=1e-6):
        return Scope.MODEL
    in_parts = all(torch.allclose(both, parts, rtol=1e-4, atol=1e-6) for parts in (rows, columns))
    return Scope.NUMBER if in_parts else Scope.MATRIX


def check_scope(optimizer: torch.optim.Optimizer, shares_matrices: bool) -> None:
    """Check that each process can run an optimizer's step on its own parameters.

    Args:
        optimizer: Optimizer of a model with pipeline stages or tensor parallelism.
        shares_matrices: Whether a process has shards of matrices.

    Raises:
        ParallelConfigError: If the step needs gradients that a process does not have.

    """
    scope, name = scope_of(optimizer), type(optimizer).__name__
    if scope is Scope.MODEL:
        raise ParallelConfigError(
            f"{name} was chosen for a partitioned model, but its step depends on the gradients of all parameters at once,"
            " and each process has only those of its stages. HINT: use an optimizer that updates each parameter"
            " independently, such as AdamW; the Trainer's gradient_clip_val clips by the norm of the full model."
        )
    if scope is Scope.MATRIX and shares_matrices:
        raise ParallelConfigError(
            f"{name} was chosen with tensor_parallel_degree, but its step depends on full matrices, of which each process"
            " has a shard. HINT: use an elementwise optimizer, such as AdamW."
        )


def _matrices() -> list[Tensor]:
    """Two matrices, with values that are not symmetric, which could hide a dependence."""
    random = torch.Generator().manual_seed(0)
    return [torch.randn(_SIZE, _SIZE, generator=random) * scale for scale in (1.0, 3.0)]


def _step(optimizer: torch.optim.Optimizer, values: list[Tensor]) -> list[Tensor]:
    """Run two steps from ``values``, with gradients that depend on the element only; returns the new values."""
    torch.manual_seed(0)  # for optimizers that draw
    parameters = [nn.Parameter(value.clone()) for value in values]
    known = inspect.signature(type(optimizer)).parameters
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())
    options: dict[str, Any] = {name: value for name, value in optimizer.defaults.items() if takes_all or name in known}
    if isinstance(options.get("lr"), float) and not options["lr"]:
        options["lr"] = 0.1  # warm-ups start at zero, where no optimizer changes anything
    tried = type(optimizer)(parameters, **options)
    for step, size in enumerate(_GRADIENTS):
        for parameter, value in zip(parameters, values, strict=True):
            parameter.grad = size * torch.sin((3 + step) * value)  # not multiples of the last: many normalize
        tried.step()
    return [parameter.detach() for parameter in parameters]
