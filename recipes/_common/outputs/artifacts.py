# SPDX-License-Identifier: Apache-2.0
"""Outputs of a run: the last checkpoint, the model as a Hugging Face folder, metrics, predictions."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_sagemaker import export_huggingface
from lightning_sagemaker.callbacks import DataWait, Throughput
from lightning_sagemaker.recipes._common.data.data_module import data_of
from lightning_sagemaker.recipes._common.outputs.best import BestModel, Exported
from lightning_sagemaker.recipes._common.outputs.export import model_card, write_serving_code
from lightning_sagemaker.recipes._common.outputs.folders import RunFolders
from lightning_sagemaker.recipes._common.outputs.pictures import training_curves
from lightning_sagemaker.recipes._common.outputs.report_pages import html_page, terminal_lines
from lightning_sagemaker.recipes._common.outputs.results import module_of
from lightning_sagemaker.recipes._common.outputs.summary import evaluation_lines, interruption_lines, training_lines
from lightning_sagemaker.text_files import write_text

LAST_CHECKPOINT = "last.ckpt"

_log = logging.getLogger(__name__)


class RunArtifacts(Callback):
    """Writes the results at the end of a stage.

    After ``fit``: ``last.ckpt``, the best model and its tokenizer with a model card and what SageMaker needs to serve
    them, ``metrics.json`` and ``curves.png``; after ``validate`` and ``test``: ``metrics-STAGE.json``, or, where the
    test follows training, more entries of ``metrics.json``; after each evaluation (in training only the best so far)
    and after ``predict`` the outputs of the module's ``write_evaluation`` and ``write_predictions``. The last lines of
    a stage list the files and the commands for the next steps.

    Args:
        recipe: Name of the recipe.
        names: Short option names of the recipe.
        folders: Folders of the run.
        throughput: Measures the speed for the metrics.
        data_wait: Measures the waiting for data; the metrics have the worst rank's.
        best: Chooses the step to export.
        save_checkpoint: Whether to write ``last.ckpt``.
        facts: Additional entries of ``metrics.json``.
        says_resume: Whether to log how to resume after an interruption.

    """

    def __init__(
        self,
        recipe: str,
        names: Collection[str],
        folders: RunFolders,
        throughput: Throughput,
        data_wait: DataWait,
        best: BestModel,
        save_checkpoint: bool = True,
        facts: Mapping[str, Any] | None = None,
        says_resume: bool = True,
    ) -> None:
        self._recipe, self._names = recipe, names
        self._folders = folders
        self._throughput, self._data_wait, self._best = throughput, data_wait, best
        self._save_checkpoint = save_checkpoint
        self._facts = dict(facts or {})
        self._says_resume = says_resume
        self._exported: Exported | None = None
        self._findings: list[tuple[str, str]] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log and write the data report before training."""
        data = data_of(trainer)
        report = data.report() if data is not None and trainer.is_global_zero else None
        if report is not None:
            _say(terminal_lines(report))
            write_text(self._folders.output / "data.html", html_page(f"Data of {self._recipe}", report))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let ``latest`` point to this run."""
        if trainer.is_global_zero:
            self._folders.mark_latest()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the last checkpoint, the model and the metrics."""
        # Rank zero's folder: a new folder is named by the time, in which ranks may differ by a second.
        last = trainer.strategy.broadcast(self._folders.checkpoints) / LAST_CHECKPOINT
        if self._save_checkpoint:
            trainer.save_checkpoint(last, weights_only=False)
        self._exported = self._best.restore(trainer, last)
        self._export(trainer, pl_module, self._exported)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the best model for the test also if the run was resumed after its last step and did not train."""
        if self._exported is None and trainer.global_step:
            self._exported = self._best.restore(trainer, self._folders.checkpoints / LAST_CHECKPOINT)
            if not trainer.strategy.broadcast((self._folders.model / "config.json").is_file()):
                self._export(trainer, pl_module, self._exported)

    def _export(self, trainer: Trainer, pl_module: LightningModule, exported: Exported) -> None:
        weights = trainer.strategy.lightning_module_state_dict()  # complete on rank zero; may be collective
        if trainer.is_global_zero:
            module, data = module_of(trainer), data_of(trainer)
            assert data is not None
            module.draw_evaluation(self._folders.output, "validate")
            self._findings = module.evaluation_findings()
            metrics = self._write_metrics(
                trainer, "metrics.json", {**exported.metrics, **self._training_facts(trainer)}
            )
            weights = module.exported_weights(weights)
            export_huggingface(module.model, self._folders.model, data.load_tokenizer(), weights)
            self._write_card(trainer, pl_module, metrics)
            write_serving_code(self._folders.model, module.pipeline_task)

    def _write_card(self, trainer: Trainer, pl_module: LightningModule, metrics: Mapping[str, Any]) -> None:
        data = data_of(trainer)
        assert data is not None
        settings = {key: value for key, value in pl_module.hparams.items() if key[0] != "_"}
        write_text(self._folders.model / "README.md", model_card(self._recipe, data.facts(), settings, metrics))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Draw the curves, when the loggers have written all."""
        if trainer.is_global_zero and stage == "fit":
            for logger in trainer.loggers:
                logger.save()
            history = self._folders.output / "history" / "metrics.csv"
            training_curves(history, self._folders.output / "curves.png")

    def say_trained(self, trainer: Trainer) -> None:
        """Log the last lines of training, and of the test that followed it."""
        if trainer.is_global_zero and self._exported is not None:
            done = f"finished at step {trainer.global_step}"
            stopped = self._best.stopped_early
            done = done if stopped is None else f"{done} ({stopped})"
            tested = {name: float(v) for name, v in trainer.callback_metrics.items() if name.startswith("test_")}
            reached = (done, self._exported, tested, self._findings)
            _say(training_lines(self._recipe, self._names, module_of(trainer).pipeline_task, self._folders, *reached))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Log how to resume after an interruption that left a checkpoint; a job in a container resumes by itself."""
        trains = trainer.state.fn == "fit" or self._exported is not None
        is_mine = trains and trainer.is_global_zero and isinstance(exception, SystemExit)
        if is_mine and self._says_resume and any(self._folders.checkpoints.glob("*.ckpt")):
            _say(interruption_lines(self._recipe, self._folders))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the outputs, in training only of the best validation so far; metrics only outside of ``fit``."""
        if trainer.sanity_checking:
            return
        wanted = trainer.state.fn != "fit" or self._best.improves(trainer)
        if trainer.is_global_zero and wanted:
            module_of(trainer).write_evaluation(self._folders.output, "validate")
            if trainer.state.fn == "validate":
                module_of(trainer).draw_evaluation(self._folders.output, "validate")
                self._write_metrics(trainer, "metrics-validate.json")
                self._say_evaluated(trainer, "validate")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the metrics and outputs of ``test``."""
        if trainer.is_global_zero:
            module_of(trainer).write_evaluation(self._folders.output, "test")
            module_of(trainer).draw_evaluation(self._folders.output, "test")
            if self._exported is None:
                self._write_metrics(trainer, "metrics-test.json")
                self._say_evaluated(trainer, "test")
            else:
                known = self._folders.output / "metrics.json"
                training = json.loads(known.read_text()) if known.is_file() else {}
                self._write_card(trainer, pl_module, self._write_metrics(trainer, known.name, training))

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the predictions of all processes."""
        module_of(trainer).write_predictions(self._folders.output)
        if trainer.is_global_zero:
            self._say_evaluated(trainer, "predict")

    def _say_evaluated(self, trainer: Trainer, stage: str) -> None:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        _say(evaluation_lines(self._recipe, stage, metrics, self._folders, module_of(trainer).evaluation_findings()))

    def _training_facts(self, trainer: Trainer) -> dict[str, Any]:
        assert self._exported is not None
        facts: dict[str, Any] = {
            "exported_step": self._exported.step,
            "monitor": self._exported.monitor,
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
        if self._data_wait.shares:
            facts["data_wait"] = max(self._data_wait.shares)
        efficiency = self._throughput.efficiency(trainer.world_size)
        return facts if efficiency is None else facts | {"scaling_efficiency": efficiency}

    def _write_metrics(self, trainer: Trainer, name: str, facts: dict[str, Any] | None = None) -> dict[str, Any]:
        metrics: dict[str, Any] = {key: float(value) for key, value in trainer.callback_metrics.items()}
        module = module_of(trainer)
        # Prefix training metrics by their split, so that they are not mistaken for those of held-out samples.
        metrics = {f"train_{key}" if key in module.train_names else key: value for key, value in metrics.items()}
        metrics = {key: value for key, value in metrics.items() if key not in ("step", "epoch")}
        # The rates of the full run override those of its last logged steps.
        metrics |= facts or {}
        write_text(self._folders.output / name, json.dumps(metrics, indent=2, sort_keys=True) + "\n")
        return metrics


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        _log.info("%s", line)
