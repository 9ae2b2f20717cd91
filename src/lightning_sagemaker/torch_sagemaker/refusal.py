# SPDX-License-Identifier: Apache-2.0
"""Base class of modules that this stand-in does not support."""

from __future__ import annotations

from torch import nn

from lightning_sagemaker.parallel.degrees import ParallelConfigError


class Refused(nn.Module):
    """Base class of AWS's modules that scripts use in wrapping policies and ``isinstance``; they cannot be built here.

    Raises:
        ParallelConfigError: When it is built.

    """

    instead = "transformers' own module"

    def __init__(self, *_: object, **__: object) -> None:
        raise ParallelConfigError(
            f"torch.sagemaker's {type(self).__name__} was built, which this stand-in for AWS's library does not support."
            f" HINT: use {self.instead}."
        )
