# SPDX-License-Identifier: Apache-2.0
"""What ``RunArtifacts`` asks of a recipe's module: its model, and outputs in addition to its metrics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer


class LeavesResults:
    """Hooks that do nothing, overridden by recipes."""

    model: Any
    """The transformers model."""
    pipeline_task = ""
    """Task name of transformers' ``pipeline``, to serve the model."""
    train_names: set[str]
    """Names under which means over training samples are logged, at logged steps."""

    @abstractmethod
    def exported_weights(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state dictionary of :attr:`model` from that of this module."""

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


def module_of(trainer: Trainer) -> LeavesResults:
    """The recipe's module."""
    module = trainer.lightning_module
    assert isinstance(module, LeavesResults)
    return module
