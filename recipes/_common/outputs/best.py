# SPDX-License-Identifier: Apache-2.0
"""Keeps and exports the best checkpoint by a validation metric, and stops training when it no longer improves."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, StochasticWeightAveraging

from lightning_sagemaker._compat.trainer import callbacks_of
from lightning_sagemaker.recipes._common.modules.pretrained import CONFIG_KEY

AUTO = "auto"
BEST_CHECKPOINT = "best.ckpt"
METRICS_KEY = "validation_metrics"
"""Entry of a checkpoint: the metrics of the last validation before it was saved."""

_log = logging.getLogger(__name__)

_LOWER = {"loss", "perplexity", "mse", "mae", "error", "ece", "brier"}
_HIGHER = {"accuracy", "f1", "exact", "precision", "recall", "correlation", "pearson", "spearman", "score", "auroc"}
_NEITHER = {"thresh", "threshold", "total"}
"""Words in metric names: lower is better, higher is better, and not a measure of quality."""


@dataclass(frozen=True)
class Exported:
    """The weights that a run exports.

    Args:
        step: Optimizer step of the weights.
        metrics: Name -> value in the last validation up to that step.
        monitor: Metric by which the step was chosen; ``None``: the last step.
        checkpoint: The file with the weights.

    """

    step: int
    metrics: Mapping[str, float]
    monitor: str | None
    checkpoint: Path

    def __str__(self) -> str:
        if self.monitor is None:
            return f"step {self.step}, the last"
        return f"step {self.step}, the best by {self.monitor}: {self.metrics[self.monitor]:.4f}"


def mode_of(metric: str) -> str:
    """``min`` or ``max``, by the words of a metric's name.

    Raises:
        MisconfigurationException: If the name does not decide it.

    """
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    if words & _NEITHER or bool(words & _LOWER) == bool(words & _HIGHER):
        raise MisconfigurationException(
            f"--monitor {metric} was set, and whether a lower or a higher value is better does not follow from its name."
            " HINT: add --monitor_mode min or max."
        )
    return "min" if words & _LOWER else "max"


class BestModel(Callback):
    """Keeps ``best.ckpt``, the checkpoint with the best validation metric, and restores it when training is over.

    Uses Lightning's ``ModelCheckpoint`` and ``EarlyStopping``, which are created in :meth:`setup`, as the recipe's
    metric depends on the data. Their states are in every checkpoint, so a resumed run continues with the same best
    value and the same patience count.

    Args:
        folder: Folder of the checkpoints.
        monitor: Name of a validation metric, with or without ``val_``; ``auto``: the recipe's; ``None``: the last step
            is exported.
        mode: ``min`` or ``max``; ``auto``: by the metric's name.
        patience: Validations without improvement after which training stops; ``None``: never.
        keeps: Whether checkpoints are written.

    Raises:
        MisconfigurationException: If the values contradict each other.

    """

    def __init__(
        self,
        folder: Path,
        monitor: str | None = AUTO,
        mode: str = AUTO,
        patience: int | None = None,
        keeps: bool = True,
    ) -> None:
        self._folder, self._patience, self._keeps = folder, patience, keeps
        self._is_explicit = monitor != AUTO or patience is not None
        self._monitor = monitor if monitor in (None, AUTO) or monitor.startswith("val_") else f"val_{monitor}"
        self._mode = mode
        self._checkpoint: ModelCheckpoint | None = None
        self._stopping: EarlyStopping | None = None
        if patience is not None and (patience < 1 or monitor is None):
            raise MisconfigurationException(
                f"--patience {patience} was set with --monitor {monitor or 'null'}. HINT: patience must be at least 1,"
                " and needs a metric."
            )
        if self._monitor not in (None, AUTO):
            if not keeps:
                raise MisconfigurationException(
                    f"--monitor {monitor} was set with trainer.enable_checkpointing=false, but the best model is kept in a"
                    " checkpoint. HINT: leave out one of them."
                )
            if mode == AUTO:
                mode_of(str(self._monitor))

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Add Lightning's callbacks; their own setup is called next."""
        if stage != "fit" or self._checkpoint is not None or self._stopping is not None:
            return
        averages = any(isinstance(callback, StochasticWeightAveraging) for callback in callbacks_of(trainer))
        if self._monitor == AUTO and averages:
            self._say(trainer, "exporting the last step: StochasticWeightAveraging has its weights only at the end")
            self._monitor = None
        if self._monitor is None:
            return
        if self._monitor == AUTO:
            self._monitor = str(pl_module.default_monitor)
        mode = mode_of(self._monitor) if self._mode == AUTO else self._mode
        if self._patience is not None:
            self._stopping = EarlyStopping(
                self._monitor, patience=self._patience, mode=mode, check_on_train_epoch_end=False
            )
            callbacks_of(trainer).append(self._stopping)
        if self._keeps:
            # Last, so that the checkpoint has EarlyStopping's count. One name: the file is replaced, never missing.
            self._checkpoint = ModelCheckpoint(
                self._folder,
                Path(BEST_CHECKPOINT).stem,
                self._monitor,
                mode=mode,
                save_on_train_epoch_end=False,
                enable_version_counter=False,
            )
            callbacks_of(trainer).append(self._checkpoint)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that there is a validation to monitor.

        Raises:
            MisconfigurationException: If there is none, and a metric or patience was set.

        """
        batches: Any = trainer.num_val_batches
        if self._monitor is None or sum(batches if isinstance(batches, list) else [batches]):
            return
        if self._is_explicit:
            raise MisconfigurationException(
                f"--monitor {self._monitor} or --patience was set, but there is no validation."
                " HINT: give validation data, and do not set trainer.limit_val_batches."
            )
        self._say(trainer, "exporting the last step, as there is no validation")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that the metric is logged, from Lightning's sanity check on.

        Raises:
            MisconfigurationException: If it is not.

        """
        found = trainer.callback_metrics
        if trainer.state.fn != "fit" or self._monitor is None or self._monitor in found:
            return
        names = sorted(name for name in found if name.startswith("val_"))
        nearest = difflib.get_close_matches(self._monitor, names, n=1, cutoff=0.0)
        raise MisconfigurationException(
            f"--monitor {self._monitor} was set, but validation logs {', '.join(names) or 'no metric'}."
            f" HINT: the nearest name is {nearest[0] if nearest else 'val_loss'}."
        )

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the metrics of the last validation."""
        values = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val_")}
        checkpoint[METRICS_KEY] = values

    def improves(self, trainer: Trainer) -> bool:
        """Whether the validation that ends is the best so far; collective."""
        if self._checkpoint is None or self._monitor not in trainer.callback_metrics:
            return True
        return self._checkpoint.check_monitor_top_k(trainer, trainer.callback_metrics[self._monitor])

    @property
    def stopped_early(self) -> str | None:
        """Why training ended before its last step, if it did."""
        if self._stopping is None or self._stopping.wait_count < self._stopping.patience:
            return None
        return f"stopped early: {self._monitor} has not improved in {self._stopping.patience} validations"

    def restore(self, trainer: Trainer, last: Path) -> Exported:
        """Put the best weights into the model of every process; collective.

        Rank zero reads the file, which other hosts need not have, unless the model is sharded or the checkpoint is a
        folder of shards: then each process reads, as in resuming.

        Args:
            trainer: Trainer after training.
            last: Path of the last step's checkpoint.

        """
        strategy = trainer.strategy
        if hasattr(strategy, "finish_saving"):
            strategy.finish_saving()
        path = self._best_path(trainer)
        if path is None:
            metrics = {name: float(v) for name, v in trainer.callback_metrics.items() if name.startswith("val_")}
            return Exported(trainer.global_step, metrics, None, last)
        module: Any = trainer.lightning_module
        loads = strategy.restore_checkpoint_after_setup  # the weights, too; of pipeline stages they are read only
        if loads or strategy.broadcast(path.is_dir()):
            found = strategy.load_checkpoint(path)
            if not loads:
                strategy.load_model_state_dict(found, strict=module.strict_loading)
            module.take_findings(found[CONFIG_KEY])
            return Exported(found["global_step"], found[METRICS_KEY], self._monitor, path)
        facts: Any = None
        weights: Any = None
        if trainer.is_global_zero:
            found = strategy.load_checkpoint(path)
            facts = found["global_step"], found[METRICS_KEY], found[CONFIG_KEY]
            weights = found["state_dict"]
        step, metrics, config = strategy.broadcast(facts)
        if step != trainer.global_step:
            strategy.load_model_state_dict({"state_dict": strategy.broadcast(weights)}, strict=module.strict_loading)
            module.take_findings(config)
        return Exported(step, metrics, self._monitor, path)

    def _best_path(self, trainer: Trainer) -> Path | None:
        """Path of the best checkpoint, the same on all processes; ``None`` if there is none, or it was deleted."""
        path = "" if self._checkpoint is None else self._checkpoint.best_model_path
        is_there = bool(path) and Path(path).exists()
        if trainer.strategy.restore_checkpoint_after_setup:
            is_there = trainer.strategy.reduce_boolean_decision(is_there)
        path, is_there = trainer.strategy.broadcast((path, is_there))
        if path and not is_there:
            self._say(trainer, f"{path} no longer exists; exporting the last step instead of the best")
        return Path(path) if is_there else None

    def _say(self, trainer: Trainer, sentence: str) -> None:
        if trainer.is_global_zero:
            _log.warning("%s", sentence) if self._is_explicit else _log.info("%s", sentence)
