# SPDX-License-Identifier: Apache-2.0
"""Runs parts of Lightning's training step: for batches from outside its loop, and to resume after a loss."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from torchmetrics import Metric

from lightning_sagemaker._compat.guard import require
from lightning_sagemaker._lightning import PACKAGE

if TYPE_CHECKING:
    from torch import Tensor
    from torch.amp import GradScaler

    from lightning_sagemaker._types import Trainer


_root = "lightning.pytorch" if PACKAGE == "lightning" else "pytorch_lightning"
_call = import_module(f"{_root}.trainer.call")
_automatic = import_module(f"{_root}.loops.optimization.automatic")
require(_call, "_call_strategy_hook", "_call_lightning_module_hook", "_call_callback_hooks")
require(_automatic.ClosureResult, "from_training_step_output")


def call_strategy(trainer: Trainer, name: str, *arguments: object, **keywords: object) -> object:
    """Call a method of the strategy, as the loops do."""
    return _call._call_strategy_hook(trainer, name, *arguments, **keywords)


def call_module(trainer: Trainer, name: str, *arguments: object) -> object:
    """Call a method of the module, as the loops do."""
    return _call._call_lightning_module_hook(trainer, name, *arguments)


def closure_result(output: object, accumulated: int) -> Tensor | None:
    """The loss for the backward pass, from the return value of ``training_step``; None if there is none."""
    loss: Tensor | None = _automatic.ClosureResult.from_training_step_output(output, accumulated).closure_loss
    return loss


def forget_interruption(trainer: Trainer) -> None:
    """Restore a Trainer after an exception to a state from which its loops can resume training."""
    trainer.training = True
    trainer.lightning_module._current_fx_name = None
    for results in (trainer.fit_loop.epoch_loop._results, trainer.fit_loop.epoch_loop.val_loop._results):
        results.clear()
    for metric in trainer.lightning_module.modules():
        if isinstance(metric, Metric):
            metric._is_synced, metric._cache = False, None
            metric.reset()
    trainer.lightning_module.zero_grad()
    scaler: GradScaler | None = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is not None:  # otherwise it refuses to unscale the step's gradients again
        scaler._per_optimizer_states.clear()


def weigh_logged_at_end(trainer: Trainer, weight: int) -> None:
    """Set this rank's weight, instead of 1, in the mean over ranks of values that a validation's end has logged."""
    for logged in trainer.fit_loop.epoch_loop.val_loop._results.values():
        if logged.meta.fx == "on_validation_epoch_end" and logged.is_tensor and logged.meta.is_mean_reduction:
            logged.value = logged.value * weight
            logged.cumulated_batch_size = logged.cumulated_batch_size * weight
            logged._computed = None  # Lightning has reduced it once already


def end_batch_saves(trainer: Trainer, outputs: object, batch: object, batch_idx: int) -> None:
    """Run the callbacks of a batch's end that follow the module's hook, after which the state was saved."""
    for callback in trainer.checkpoint_callbacks:
        callback.on_train_batch_end(trainer, trainer.lightning_module, outputs, batch, batch_idx)  # type: ignore[arg-type]
    _log(trainer)


def end_batch_hooks(trainer: Trainer, outputs: object, batch: object, batch_idx: int) -> None:
    """Run the hooks of a batch's end, in the first of which the state was saved."""
    _call._call_callback_hooks(trainer, "on_train_batch_end", outputs, batch, batch_idx)
    _call._call_lightning_module_hook(trainer, "on_train_batch_end", outputs, batch, batch_idx)
    _log(trainer)


def _log(trainer: Trainer) -> None:
    trainer._logger_connector.on_batch_end()
    trainer._logger_connector.update_train_step_metrics()  # as the loops do after these hooks
