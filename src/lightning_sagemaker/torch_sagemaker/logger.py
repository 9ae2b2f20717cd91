# SPDX-License-Identifier: Apache-2.0
"""Mirrors ``torch.sagemaker.logger``."""

from __future__ import annotations

import logging


def get_logger() -> logging.Logger:
    """The library's logger."""
    return logging.getLogger("smp")
