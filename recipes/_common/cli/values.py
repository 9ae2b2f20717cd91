# SPDX-License-Identifier: Apache-2.0
"""Numbers that an option's type allows and its meaning does not are refused before anything is prepared or written."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from lightning_sagemaker.errors import CommandError

_RANGES = {
    "seed_everything": (0, 2**32 - 1),  # numpy's
    "checkpoint_every": (0, math.inf),
    "checkpoint_minutes": (0, math.inf),
    "total_examples": (1, math.inf),
    "trainer.accumulate_grad_batches": (1, math.inf),
    "trainer.val_check_interval": (sys.float_info.min, math.inf),
    "data.num_workers": (0, math.inf),
    "model.dropout": (0, 1),
    "model.label_smoothing": (0, 1),
}
"""Option -> its least and its greatest number."""


def check_values(options: Mapping[str, Any]) -> None:
    """Check the options of a stage.

    Raises:
        CommandError: If a number is out of range.

    """
    for name, (low, high) in _RANGES.items():
        value = options.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and not low <= value <= high:
            wanted = f"at most {high}" if value > high else "more than 0" if 0 < low < 1 else f"at least {low}"
            raise CommandError(f"{name}={value} was set. HINT: it must be {wanted}.")
