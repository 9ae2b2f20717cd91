# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind: the last checkpoint, the model as a Hugging Face folder, metrics, predictions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_sagemaker import export_huggingface
from lightning_sagemaker.callbacks import Throughput
from lightning_sagemaker.recipes._common.export import model_card, write_serving_code
from lightning_sagemaker.recipes._common.files import write_text
from lightning_sagemaker.recipes._common.folders import RunFolders
from lightning_sagemaker.recipes._common.pictures import training_curves

LAST_CHECKPOINT = "last.ckpt"


class RunArtifacts(Callback):
    """Writes the results at the end of a stage.

    After ``fit``: ``last.ckpt``, the model and tokenizer with a model card and what SageMaker needs to serve them,
    ``metrics.json`` and ``curves.png``; after ``validate`` and ``test``: ``metrics-STAGE.json``; after each evaluation
    and after ``predict`` what the module's ``write_evaluation`` and ``write_predictions`` write.

    Args:
        recipe: Its name.
        folders: Of the run.
        throughput: Whose record goes into the metrics.
        save_checkpoint: Whether to write ``last.ckpt``.
        facts: More to say in ``metrics.json``.

    """

    def __init__(
        self,
        recipe: str,
        folders: RunFolders,
        throughput: Throughput,
        save_checkpoint: bool = True,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self._recipe = recipe
        self._folders = folders
        self._throughput = throughput
        self._save_checkpoint = save_checkpoint
        self._facts = dict(facts or {})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Checkpoint, model, metrics."""
        if self._save_checkpoint:
            trainer.save_checkpoint(self._folders.checkpoints / LAST_CHECKPOINT, weights_only=False)
        weights = trainer.strategy.lightning_module_state_dict()  # whole on rank zero; all processes may have to help
        if trainer.is_global_zero:
            metrics = self._write_metrics(trainer, "metrics.json", self._training_facts(trainer))
            prefix = "model."
            weights = {name[len(prefix) :]: value for name, value in weights.items() if name.startswith(prefix)}
            self._export(trainer, pl_module, weights, metrics)

    def _export(
        self, trainer: Trainer, pl_module: LightningModule, weights: Mapping[str, Any], metrics: Mapping[str, Any]
    ) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        model: Any = pl_module.model
        export_huggingface(model, self._folders.model, data.load_tokenizer(), weights)
        settings = {key: value for key, value in pl_module.hparams.items() if key[0] != "_"}
        write_text(self._folders.model / "README.md", model_card(self._recipe, data.facts(), settings, metrics))
        write_serving_code(self._folders.model, pl_module.pipeline_task)  # type: ignore[arg-type]

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Draw the curves, when the loggers have written all."""
        if trainer.is_global_zero and stage == "fit":
            for logger in trainer.loggers:
                logger.save()
            history = self._folders.output / "history" / "metrics.csv"
            training_curves(history, self._folders.output / "curves.png")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Results; the metrics within ``fit`` are part of its own."""
        if trainer.is_global_zero and not trainer.sanity_checking:
            pl_module.write_evaluation(self._folders.output, "validate")  # type: ignore[operator]
            if trainer.state.fn == "validate":
                self._write_metrics(trainer, "metrics-validate.json")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Metrics and results of ``test``."""
        if trainer.is_global_zero:
            pl_module.write_evaluation(self._folders.output, "test")  # type: ignore[operator]
            self._write_metrics(trainer, "metrics-test.json")

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Predictions of all processes."""
        pl_module.write_predictions(self._folders.output)  # type: ignore[operator]

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
            facts |= rates | {"timed_steps": result.steps, "step_seconds": self._throughput.step_seconds}
        efficiency = self._throughput.efficiency(trainer.world_size)
        return facts if efficiency is None else facts | {"scaling_efficiency": efficiency}

    def _write_metrics(self, trainer: Trainer, name: str, facts: dict[str, Any] | None = None) -> dict[str, Any]:
        metrics: dict[str, Any] = {key: float(value) for key, value in trainer.callback_metrics.items()}
        metrics = {key: value for key, value in metrics.items() if key not in ("step", "epoch")}
        # The rates of the whole run go before those of its last logged steps.
        metrics |= facts or {}
        write_text(self._folders.output / name, json.dumps(metrics, indent=2, sort_keys=True) + "\n")
        return metrics
