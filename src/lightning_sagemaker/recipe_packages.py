# SPDX-License-Identifier: Apache-2.0
"""Whether the packages of the extra ``recipes`` are installed; asked by each command that runs a recipe's code."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_NEEDED = ("transformers", "jsonargparse")
"""Modules without which no recipe can be imported; the extra's others are optional."""


def has_packages() -> bool:
    """Whether they are there; if not, one sentence on stderr says how to install them."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        print(
            f"error: the recipes need {' and '.join(missing)}, not installed here."
            " HINT: pip install 'lightning-sagemaker[recipes]'.",
            file=sys.stderr,
        )
    return not missing
