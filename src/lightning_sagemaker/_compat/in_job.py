# SPDX-License-Identifier: Apache-2.0
"""What Lightning does in a step, called in its place: for batches that its loop does not know, and to go on after a loss."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lightning_sagemaker._compat.guard import require
from lightning_sagemaker._lightning import PACKAGE

_root = "lightning.pytorch" if PACKAGE == "lightning" else "pytorch_lightning"
_call = import_module(f"{_root}.trainer.call")
_automatic = import_module(f"{_root}.loops.optimization.automatic")
require(_call, "_call_strategy_hook", "_call_lightning_module_hook", "_call_callback_hooks")
require(_automatic.ClosureResult, "from_training_step_output")


def call_strategy(trainer: Any, name: str, *arguments: Any, **keywords: Any) -> Any:
    """Call a method of the strategy, as the loops do."""
    return _call._call_strategy_hook(trainer, name, *arguments, **keywords)


def call_module(trainer: Any, name: str, *arguments: Any) -> Any:
    """Call a method of the module, as the loops do."""
    return _call._call_lightning_module_hook(trainer, name, *arguments)


def closure_result(output: Any, accumulated: int) -> Any:
    """The loss to be differentiated of what ``training_step`` returned; None if there is none."""
    return _automatic.ClosureResult.from_training_step_output(output, accumulated).closure_loss


def forget_interruption(trainer: Any) -> None:
    """Bring a Trainer that an exception has left amid anything to where its loops can go on in training."""
    trainer.training = True
    trainer.lightning_module._current_fx_name = None
    for results in (trainer.fit_loop.epoch_loop._results, trainer.fit_loop.epoch_loop.val_loop._results):
        results.clear()
    for metric in trainer.lightning_module.modules():
        if hasattr(metric, "metric_state") and hasattr(metric, "_update_count"):  # one of torchmetrics
            metric._is_synced, metric._cache = False, None
            metric.reset()
    trainer.lightning_module.zero_grad()


def end_batch_hooks(trainer: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
    """The hooks of a batch's end, in the first of which a state was held."""
    _call._call_callback_hooks(trainer, "on_train_batch_end", outputs, batch, batch_idx)
    _call._call_lightning_module_hook(trainer, "on_train_batch_end", outputs, batch, batch_idx)
    trainer._logger_connector.on_batch_end()
