# SPDX-License-Identifier: Apache-2.0
"""Checks that ranks still train the same weights after one was replaced.

A replacement receives the content of checkpoints, and plain attributes. A script may have other state that affects updates,
such as a custom scheduler object, and then the ranks would silently train different models.
"""

from __future__ import annotations

import torch
from torch import nn

from lightning_sagemaker.recovery import wire
from lightning_sagemaker.recovery.coordinator_client import CoordinatorClient
from lightning_sagemaker.recovery.refused import CannotRecover, restarting_instead

_VOTES = 6
"""Steps whose weights are compared after a change of ranks; those of the first have just been transferred."""
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class WeightsCheck:
    """Compares the weights of all ranks in the votes on the steps that follow a change of ranks.

    Args:
        compares: Whether all ranks have the same weights, unlike shards of a sharded model.
        client: This rank's connection to the coordinator.
        is_asked: Whether the script has set ``recovery="in_job"``.

    """

    def __init__(self, compares: bool, client: CoordinatorClient, is_asked: bool) -> None:
        self._compares, self._client, self._is_asked, self._left = compares, client, is_asked, 0

    def begin(self) -> None:
        """Start comparing, as the ranks have changed."""
        self._left = _VOTES if self._compares else 0

    def sum(self, module: nn.Module) -> int | None:
        """Checksum of the trained parameters' bits, for a vote; None if they are no longer compared."""
        if self._left == 0:
            return None
        self._left -= 1
        total = torch.zeros((), dtype=torch.int64)
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.element_size() in _BITS:
                flat = parameter.detach().contiguous().flatten()
                bits = (torch.view_as_real(flat) if flat.is_complex() else flat).view(
                    _BITS[min(flat.element_size(), 4)]
                )
                total = total.to(bits.device) * 31 + bits.sum(dtype=torch.int64)
        return int(total)

    def checked(self, decision: wire.Reply) -> wire.Reply:
        """Check the decision on a vote. If the weights differ, all ranks restart together.

        Raises:
            CannotRecover: Instead, if the script has set ``recovery="in_job"``.

        """
        with restarting_instead(self._client, self._is_asked):
            if decision.get("differ"):
                raise CannotRecover(
                    "after a rank was replaced, the ranks have trained different weights: the script has something that"
                    " decides its updates and that no state_dict holds, such as a scheduler of its own, or a setting of the"
                    " Trainer that a hook changes"
                )
        return decision
