# SPDX-License-Identifier: Apache-2.0
"""What this stand-in does not have."""

from __future__ import annotations

from torch import nn

from lightning_sagemaker.parallel.degrees import ParallelConfigError


class Refused(nn.Module):
    """Base of AWS's modules that scripts name, in policies and ``isinstance``, but that cannot be built here.

    Raises:
        ParallelConfigError: When it is built.

    """

    instead = "transformers' own module"

    def __init__(self, *_: object, **__: object) -> None:
        raise ParallelConfigError(
            f"torch.sagemaker's {type(self).__name__} was built, which this stand-in for AWS's library does not support."
            f" HINT: use {self.instead}."
        )
