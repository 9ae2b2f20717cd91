# SPDX-License-Identifier: Apache-2.0
"""Base class of the recipes' LightningModules: the optimizer, metrics at logged steps, self-contained checkpoints."""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig

from lightning_sagemaker._compat.trainer import log_interval
from lightning_sagemaker.rank import is_rank_zero
from lightning_sagemaker.recipes._common.modules.albert import place_norms
from lightning_sagemaker.recipes._common.modules.fitting import check_optimizer, check_trained, explain_misfit
from lightning_sagemaker.recipes._common.modules.freezing import freeze as freeze_weights
from lightning_sagemaker.recipes._common.modules.lora import (
    LoRA,
    add_adapters,
    check_entry,
    checkpoint_entry,
    fingerprint,
    merged,
    require_peft,
    without_frozen,
)
from lightning_sagemaker.recipes._common.modules.optimization import Optimization
from lightning_sagemaker.recipes._common.modules.pretrained import (
    CONFIG_KEY,
    LORA_KEY,
    TOKENIZER_KEY,
    fill_weights,
    plain,
    seeded,
    tokenizer_files,
)
from lightning_sagemaker.recipes._common.modules.speed import fuse
from lightning_sagemaker.recipes._common.outputs.results import LeavesResults

Batch = dict[str, Tensor]

_log = logging.getLogger(__name__)


class Metrics(Protocol):
    """A metric of torchmetrics, or several."""

    def compute(self) -> Any:
        """Name -> value over all processes."""

    def reset(self) -> Any:
        """Reset the state."""


class RecipeModule(LeavesResults, LightningModule):
    """Trains a transformers model.

    A subclass builds the model in :meth:`build`, returns the loss in :meth:`training_loss`, and updates
    ``train_metrics`` (in training) and ``evaluation_metrics``: torchmetrics whose ``compute()`` returns a dictionary of
    values over all processes, which do not depend on the number of processes.

    Args:
        fused: Compute the same numbers in fewer operations (see
            :func:`~lightning_sagemaker.recipes._common.modules.speed.fuse`).
        compile: Compile the model with ``torch.compile``; its first steps are slow.
        lora: Train low-rank adapters and the head instead of all weights, by peft.
        freeze: Weights that are not trained: ``layers:N`` (the first N), or parts or patterns of names, as
            ``embeddings``, with commas between them.
        optimization: See :class:`~lightning_sagemaker.recipes._common.modules.optimization.Optimization`.

    Raises:
        MisconfigurationException: If ``lora`` and ``freeze`` are both set.
        ModuleNotFoundError: If ``lora`` is set without peft.

    """

    train_metrics: Metrics
    evaluation_metrics: Metrics
    default_monitor = "val_loss"
    """The metric whose best validation is exported, unless ``--monitor`` names another."""

    def __init__(
        self,
        fused: bool = True,
        compile: bool = False,
        lora: LoRA | None = None,
        freeze: list[str] | str | None = None,
        **optimization: Any,
    ) -> None:
        super().__init__()
        self.optimization = Optimization(**optimization)
        self.model = None
        self._fused, self._compiled, self._freeze, self._base = fused, compile, freeze, ""
        # In a checkpoint's hyperparameters it is a dictionary.
        self._lora = LoRA(**lora) if isinstance(lora, Mapping) else lora
        if self._lora is not None:
            require_peft()
            if freeze:
                raise MisconfigurationException(
                    "model.lora and model.freeze were both set, but adapters already freeze all weights below the head."
                    " HINT: leave out model.freeze."
                )
        self._last_step, self._begins, self._is_trained = 0, False, False
        self.train_names = set()
        self._tokenizer_files: dict[str, str] | None = None

    def check_strategy(self, strategy: Any) -> None:
        """Check that a strategy can train the model, before there is a process group.

        Raises:
            MisconfigurationException: If the model has adapters, and the strategy shards models.

        """
        if self._lora is not None and (hasattr(strategy, "degrees") or strategy.restore_checkpoint_after_setup):
            raise MisconfigurationException(
                f"model.lora was set with {type(strategy).__name__}, which shards the model, but adapters need an unsharded"
                " model. HINT: train with strategy smddp or ddp, or leave out model.lora."
            )

    @abstractmethod
    def build(self, config: PretrainedConfig | None) -> Any:
        """The model: from the settings and the data, or from ``config`` with random weights."""

    @abstractmethod
    def training_loss(self, batch: Batch) -> Tensor:
        """The mean loss of a batch; updates ``train_metrics``."""

    def configure_model(self) -> None:
        """Build the model if there is a trainer; ``load_from_checkpoint`` builds it in :meth:`on_load_checkpoint`."""
        if self.model is None and self._trainer is not None:
            self._set_model(None)

    def _set_model(self, config: PretrainedConfig | None) -> None:
        # The weights must not depend on how many random numbers were drawn before, such as by another launcher.
        self.model = seeded(int(os.environ.get("PL_GLOBAL_SEED", "0")), lambda: self._build_adapted(config))
        place_norms(self.model)
        if self._fused:
            fuse(self.model)
        if self._compiled:
            self.compile_model()
        self.model.train()

    def _build_adapted(self, config: PretrainedConfig | None) -> Any:
        """The model, with adapters or some weights frozen if set."""
        model, pretrained, said = self.build(config), self.hparams.get("pretrained"), None
        if self._lora is not None:
            if config is not None and pretrained is not None:
                fill_weights(model, pretrained)  # the checkpoint that the configuration is from has adapters only
            said = add_adapters(model, self._lora)
            self._base = fingerprint(model)
            if pretrained is None and is_rank_zero():
                _log.warning(
                    "model.lora was set without model.pretrained, so all weights below the head stay random."
                    " HINT: train adapters on a pretrained model."
                )
        elif self._freeze:
            said = freeze_weights(model, self._freeze)
        if said is not None and is_rank_zero():
            _log.info("%s", said)
        return model

    def exported_weights(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state dictionary of :attr:`model` from that of this module, with adapters merged."""
        prefix = "model."
        weights = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
        return weights if self._lora is None else merged(weights, self._lora)

    def compile_model(self) -> None:
        """Compile the model without its head; lengths change from batch to batch."""
        self.model.base_model.compile(dynamic=True)

    @property
    def data(self) -> Any:
        """The data module that the trainer was given.

        Raises:
            MisconfigurationException: If it was given loaders instead.

        """
        data = getattr(self.trainer, "datamodule", None)
        if data is None:
            raise MisconfigurationException(
                f"{type(self).__name__} was passed to the Trainer without its datamodule."
                " HINT: trainer.fit(module, datamodule=...)."
            )
        return data

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss."""
        return self.training_loss(batch)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip the norm of the gradients.

        Lightning refuses a fused optimizer in every mixed precision, because one with a loss scaler would clip scaled
        gradients; bfloat16 has no scaler.
        """
        if self.trainer.precision == "bf16-mixed" and gradient_clip_algorithm in (None, "norm"):
            if gradient_clip_val:
                self.trainer.precision_plugin.clip_grad_by_norm(optimizer, gradient_clip_val)
        else:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        """Step, and free the gradients, which Lightning does only after the next forward pass."""
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        optimizer.zero_grad(set_to_none=True)

    def on_train_start(self) -> None:
        """Remember the step at which training starts."""
        self._last_step = self.trainer.global_step
        self._begins = self._is_trained = True

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Reset metrics restored from a checkpoint of a logged step: that step's log row has their sums already."""
        if self._begins and self._is_logged(self._last_step):
            self.train_metrics.reset()
        self._begins = False

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """At logged steps, log the means since the last one over all processes; only then do they communicate."""
        step = self.trainer.global_step
        if step == self._last_step:  # a micro-batch that was accumulated
            return
        if self._is_logged(step):
            means = self._take(self.train_metrics)
            self.train_names |= means.keys()
            self.log_dict(means, prog_bar=True)
            rate = self.trainer.optimizers[0].param_groups[0]["lr"]
            self.log_dict({"learning_rate": rate, **self._position()})
        self._last_step = step  # last: if another rank is lost in the above, this is called again

    def _is_logged(self, step: int) -> bool:
        return step % log_interval(self.trainer) == 0

    def log_evaluation(self, values: Mapping[str, Any]) -> None:
        """Log numbers that are equal on all processes; ``sync_dist`` keeps Lightning from warning that they may not be."""
        self.log_dict(dict(values), prog_bar=True, sync_dist=True)
        self.log_dict(self._position(), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        """Log the means over all processes."""
        self.log_evaluation({f"val_{name}": value for name, value in self._take(self.evaluation_metrics).items()})

    def on_test_epoch_end(self) -> None:
        """Log the means over all processes."""
        self.log_evaluation({f"test_{name}": value for name, value in self._take(self.evaluation_metrics).items()})

    def _take(self, metrics: Metrics) -> dict[str, Tensor]:
        values: dict[str, Tensor] = metrics.compute()
        metrics.reset()
        return values

    def _position(self) -> dict[str, float]:
        """Lightning takes the value named ``step`` for the x axis (its own starts at 0), and then omits the epoch."""
        return {"step": float(self.trainer.global_step), "epoch": float(self.current_epoch)}

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The optimizer with a schedule over all steps of the run."""
        num_steps = int(self.trainer.estimated_stepping_batches)
        return self.optimization.build(self, num_steps, fused=self.trainer.precision != "16-mixed")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the model's configuration and the tokenizer, so that a checkpoint can be used without the data."""
        if self._tokenizer_files is None:
            self._tokenizer_files = tokenizer_files(self.data.load_tokenizer())
        checkpoint[CONFIG_KEY] = plain(self.model.config.to_dict())
        checkpoint[TOKENIZER_KEY] = self._tokenizer_files
        if self._lora is not None:
            checkpoint[self.CHECKPOINT_HYPER_PARAMS_KEY] = plain(checkpoint[self.CHECKPOINT_HYPER_PARAMS_KEY])
            checkpoint[LORA_KEY] = checkpoint_entry(self._lora, self._base)
            checkpoint["state_dict"] = without_frozen(checkpoint["state_dict"], self)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As torch's; frozen weights that a checkpoint with adapters lacks stay as they are."""
        if self._lora is not None and self.model is not None:
            own = self.state_dict()
            trained = without_frozen(own, self)
            state_dict = {name: value for name, value in own.items() if name not in trained} | dict(state_dict)
        with explain_misfit():
            return super().load_state_dict(state_dict, strict, assign)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Build the checkpoint's model unless there is one, and check its adapters."""
        if self.model is None:
            self._set_model(AutoConfig.for_model(**checkpoint[CONFIG_KEY]))
        check_entry(checkpoint.get(LORA_KEY), None if self._lora is None else checkpoint_entry(self._lora, self._base))
        check_optimizer(self._trainer, checkpoint, self.optimization.optimizer)
        self._tokenizer_files, self._is_trained = checkpoint[TOKENIZER_KEY], True

    def on_predict_start(self) -> None:
        """Check that there is something to predict with."""
        if not self._is_trained:
            check_trained(self.model, self.hparams.get("pretrained"))
