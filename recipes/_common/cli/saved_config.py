# SPDX-License-Identifier: Apache-2.0
"""The configuration of a run, saved with its outputs."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback


class SavedConfig(SaveConfigCallback):
    """Keeps the configuration of the run in its output folder."""

    folder: Path

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write ``config.yaml``; called on rank zero."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "config.yaml"
        self.parser.save(self.config, path, skip_none=False, overwrite=True, multifile=False)
