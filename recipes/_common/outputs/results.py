# SPDX-License-Identifier: Apache-2.0
"""A module's outputs in addition to its metrics: called by ``RunArtifacts``, for a recipe to override."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class LeavesResults:
    """Hooks that do nothing."""

    def write_evaluation(self, folder: Path, split: str) -> None:
        """Write the last evaluation's outputs in addition to its metrics; called on rank zero."""

    def draw_evaluation(self, folder: Path, split: str) -> None:
        """Write what takes time to draw, of the last evaluation of a stage; called on rank zero."""

    def evaluation_findings(self) -> list[tuple[str, str]]:
        """Additional lines about the last evaluation in a stage's summary: name and text."""
        return []

    def take_findings(self, config: Mapping[str, Any]) -> None:
        """Take over what the validation has found whose checkpoint holds this configuration."""

    def write_predictions(self, folder: Path) -> None:
        """Write what was predicted; called on all processes."""
