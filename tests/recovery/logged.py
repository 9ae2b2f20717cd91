# SPDX-License-Identifier: Apache-2.0
"""What a script's CSV logger has written."""

from __future__ import annotations

import csv
from pathlib import Path


def logged(folder: Path) -> dict[tuple[str, str], float]:
    """Name and step -> value."""
    (file,) = folder.glob("lightning_logs/*/metrics.csv")
    rows = csv.DictReader(file.read_text().splitlines())
    return {
        (name, row["step"]): float(value) for row in rows for name, value in row.items() if value and name != "step"
    }
