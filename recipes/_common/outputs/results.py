# SPDX-License-Identifier: Apache-2.0
"""What a module may leave beside its metrics: called by ``RunArtifacts``, for a recipe to fill in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class LeavesResults:
    """Hooks that do nothing."""

    def write_evaluation(self, folder: Path, split: str) -> None:
        """Write what the last evaluation leaves beside its metrics; called on rank zero."""

    def draw_evaluation(self, folder: Path, split: str) -> None:
        """Write what takes time to draw, of the last evaluation of a stage; called on rank zero."""

    def evaluation_findings(self) -> list[tuple[str, str]]:
        """What the last lines of a stage say about its last evaluation beside the metrics: name and text."""
        return []

    def take_findings(self, config: Mapping[str, Any]) -> None:
        """Take over what the validation has found whose checkpoint holds this configuration."""

    def write_predictions(self, folder: Path) -> None:
        """Write what was predicted; called on all processes."""
