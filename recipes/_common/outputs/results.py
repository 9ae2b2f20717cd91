# SPDX-License-Identifier: Apache-2.0
"""Hooks for a module's outputs in addition to its metrics: called by ``RunArtifacts``, overridden by recipes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class LeavesResults:
    """Hooks that do nothing."""

    def write_evaluation(self, folder: Path, split: str) -> None:
        """Write the last evaluation's outputs in addition to its metrics; called on rank zero."""

    def draw_evaluation(self, folder: Path, split: str) -> None:
        """Write slow outputs, such as pictures, of a stage's last evaluation; called on rank zero."""

    def evaluation_findings(self) -> list[tuple[str, str]]:
        """Additional lines about the last evaluation in a stage's summary: name and text."""
        return []

    def take_findings(self, config: Mapping[str, Any]) -> None:
        """Take over a validation's findings from its checkpoint's model configuration."""

    def write_predictions(self, folder: Path) -> None:
        """Write the predictions; called on all processes."""
