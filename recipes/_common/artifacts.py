# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind: the last checkpoint, the model as a Hugging Face folder, metrics, predictions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_sagemaker import export_huggingface
from lightning_sagemaker.callbacks import Throughput
from lightning_sagemaker.recipes._common.folders import RunFolders

LAST_CHECKPOINT = "last.ckpt"


class RunArtifacts(Callback):
    """Writes the results at the end of a stage.

    After ``fit``: ``last.ckpt``, the model and tokenizer (of ``pl_module.model`` and ``datamodule.load_tokenizer()``)
    and ``metrics.json``; after ``validate`` and ``test``: ``metrics-STAGE.json``; after ``predict``:
    ``predictions-RANK.jsonl``, one row per sample.

    Args:
        folders: Of the run.
        throughput: Whose record goes into the metrics.
        save_checkpoint: Whether to write ``last.ckpt``.
        facts: More to say in ``metrics.json``.

    """

    def __init__(
        self,
        folders: RunFolders,
        throughput: Throughput,
        save_checkpoint: bool = True,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self._folders = folders
        self._throughput = throughput
        self._save_checkpoint = save_checkpoint
        self._facts = dict(facts or {})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Checkpoint, model, metrics."""
        if self._save_checkpoint:
            trainer.save_checkpoint(self._folders.checkpoints / LAST_CHECKPOINT, weights_only=False)
        if trainer.is_global_zero:
            tokenizer = trainer.datamodule.load_tokenizer()  # type: ignore[attr-defined]
            export_huggingface(pl_module.model, self._folders.model, tokenizer)  # type: ignore[arg-type]
            self._write_metrics(trainer, "metrics.json", self._training_facts(trainer))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Metrics of ``validate``; within ``fit`` they are part of its own."""
        if trainer.is_global_zero and trainer.state.fn == "validate":
            self._write_metrics(trainer, "metrics-validate.json")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Metrics of ``test``."""
        if trainer.is_global_zero:
            self._write_metrics(trainer, "metrics-test.json")

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The rows that this process predicted."""
        batches: Sequence[Any] = trainer.predict_loop.predictions
        lines = [json.dumps(row) + "\n" for batch in batches for row in batch]
        self._folders.output.mkdir(parents=True, exist_ok=True)
        _write(self._folders.output / f"predictions-{trainer.global_rank}.jsonl", "".join(lines))

    def _training_facts(self, trainer: Trainer) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "steps": trainer.global_step,
            "epochs": trainer.current_epoch,
            "processes": trainer.world_size,
            "nodes": trainer.num_nodes,
            "strategy": type(trainer.strategy).__name__,
            "precision": str(trainer.precision),
            **self._facts,
        }
        result = self._throughput.result(trainer.world_size)
        if result is not None:
            rates = {"samples_per_second": result.samples_per_second, "tokens_per_second": result.tokens_per_second}
            facts |= rates | {"timed_steps": result.steps}
        efficiency = self._throughput.efficiency(trainer.world_size)
        return facts if efficiency is None else facts | {"scaling_efficiency": efficiency}

    def _write_metrics(self, trainer: Trainer, name: str, facts: dict[str, Any] | None = None) -> None:
        metrics = {key: float(value) for key, value in trainer.callback_metrics.items()}
        metrics = {key: value for key, value in metrics.items() if key not in ("step", "epoch")}
        # The rates of the whole run go before those of its last logged steps.
        self._folders.output.mkdir(parents=True, exist_ok=True)
        _write(self._folders.output / name, json.dumps(metrics | (facts or {}), indent=2, sort_keys=True) + "\n")


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(text)
    temporary.replace(path)
