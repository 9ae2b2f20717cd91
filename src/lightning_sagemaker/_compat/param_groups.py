# SPDX-License-Identifier: Apache-2.0
"""An optimizer's ``param_groups``: their parameters, and apart from them their options, which schedulers change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from lightning_sagemaker._types import StateDict


def parameters_in(groups: Iterable[Mapping[str, Iterable[nn.Parameter]]]) -> list[nn.Parameter]:
    """The parameters of all groups, in the order by which a ``state_dict`` numbers them."""
    return [parameter for group in groups for parameter in group["params"]]


def group_options(groups: Iterable[StateDict]) -> list[StateDict]:
    """The options of each group, not copied."""
    return [{name: option for name, option in group.items() if name != "params"} for group in groups]


def set_group_options(groups: Sequence[StateDict], options: Sequence[StateDict]) -> None:
    """Set the result of :func:`group_options`."""
    for group, own in zip(groups, options, strict=True):
        group.update(own)
