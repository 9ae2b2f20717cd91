# SPDX-License-Identifier: Apache-2.0
"""Where a run writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lightning_sagemaker import SageMakerJob


@dataclass(frozen=True)
class RunFolders:
    """The three folders of a run: in a training job SageMaker's, elsewhere under ``runs/NAME``.

    Args:
        model: The final model, which SageMaker uploads as the model artefact.
        output: Metrics, logs and everything else.
        checkpoints: What a restarted job continues from.

    """

    model: Path
    output: Path
    checkpoints: Path

    @classmethod
    def of(cls, job: SageMakerJob, recipe: str, run_dir: str | None = None) -> RunFolders:
        """The folders of ``recipe`` in ``job``; an explicit ``run_dir`` goes before both."""
        if run_dir is None and job.in_container:
            return cls(job.model_dir, job.output_dir, job.checkpoint_dir)
        root = Path(run_dir) if run_dir is not None else Path("runs") / recipe
        return cls(root / "model", root / "output", root / "checkpoints")
