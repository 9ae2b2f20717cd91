# SPDX-License-Identifier: Apache-2.0
"""Manual optimization of a sharded module: a training step has backward passes, updates, and forward passes after them.

FSDP2 gathers what is outside of the blocks as a step begins, and reduces its gradients after the backward pass of what the
step returns. A step that calls ``backward`` itself returns nothing of the kind: these gradients would stay local and
unused, and the next forward pass would find the parameters sharded.
"""

from __future__ import annotations

from typing import cast

from torch import nn

from lightning_sagemaker._compat.sharding import FSDPModule, announce_backward


def gather_where_used(root: nn.Module) -> None:
    """Have each module that is outside of the blocks gather their parameters, and its backward pass reduce gradients.

    Args:
        root: A module that is sharded, with its blocks as units of their own.

    """
    unit = cast("FSDPModule", root)

    def gather(*_: object) -> None:
        unit.unshard()

    for module in _outside_of_units(root):
        if any(True for _ in module.parameters(recurse=False)):
            module.register_forward_pre_hook(gather)
            module.register_forward_hook(lambda _, inputs, output: announce_backward(unit, output))


def _outside_of_units(root: nn.Module) -> list[nn.Module]:
    found: list[nn.Module] = []
    for child in root.children():
        if not isinstance(child, FSDPModule):
            found += [child, *_outside_of_units(child)]
    return found
