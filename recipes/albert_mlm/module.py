# SPDX-License-Identifier: Apache-2.0
"""ALBERT with a masked-language-model head, as a LightningModule."""

from __future__ import annotations

import os
from typing import Any

import torch
import torchmetrics
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn import functional
from transformers import AlbertConfig, AlbertForMaskedLM, get_scheduler

from lightning_sagemaker.recipes.albert_mlm.masking import IGNORED

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 128,
        "embedding_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 512,
    },
    "base": {
        "hidden_size": 768,
        "embedding_size": 128,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
    "large": {
        "hidden_size": 1024,
        "embedding_size": 128,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
}
"""``base`` and ``large`` as in table 1 of the ALBERT paper (Lan et al., 2019); ``tiny`` is for trials."""


class MaskedTokenMetrics(torchmetrics.Metric):
    """Mean loss, accuracy and perplexity over masked tokens of all processes; exact sums, so any split is equal."""

    full_state_update = False
    loss: Tensor
    correct: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("loss", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("correct", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, losses: Tensor, predictions: Tensor, labels: Tensor) -> None:
        """Add a batch.

        Args:
            losses: Of each masked token, 0 where the label is ignored.
            predictions: Most likely tokens, of the same shape.
            labels: True tokens, of the same shape.

        """
        self.loss += losses.detach().sum(dtype=torch.float64)
        self.correct += (predictions == labels).sum()
        self.count += (labels != IGNORED).sum()

    def compute(self) -> dict[str, Tensor]:
        """``loss`` in nats, ``accuracy`` and ``perplexity``; NaN without any token."""
        loss = self.loss / self.count
        return {"loss": loss, "accuracy": self.correct / self.count, "perplexity": loss.exp()}


class AlbertMLM(LightningModule):
    """Masked-language-model pretraining of ALBERT, from scratch or from weights.

    Logits are computed at the masked positions only: ``[masked tokens, vocabulary]`` instead of
    ``[batch, length, vocabulary]``, with the same loss.

    Not supported: sentence-order prediction.

    Args:
        size: ``tiny``, ``base`` or ``large``; what ``pretrained`` says goes before it.
        pretrained: Name or path of weights to start from, with a matching ``data.tokenizer``.
        dropout: Of hidden states and attention; ALBERT trains without.
        learning_rate: The highest, after the warm-up.
        weight_decay: Of matrices; biases and LayerNorm have none.
        betas: Of AdamW.
        epsilon: Of AdamW.
        schedule: ``linear``, ``polynomial``, ``cosine``, ``constant_with_warmup`` or another of transformers.
        warmup_steps: Steps of linear increase.
        end_learning_rate: Where ``polynomial`` ends.

    Raises:
        MisconfigurationException: If the size is unknown, or tokenizer and weights do not match.

    """

    def __init__(
        self,
        size: str = "base",
        pretrained: str | None = None,
        dropout: float = 0.0,
        learning_rate: float = 1e-4,
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-6,
        schedule: str = "linear",
        warmup_steps: int = 0,
        end_learning_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if size not in SIZES:
            raise MisconfigurationException(f"model.size={size!r} was set. HINT: choose one of {', '.join(SIZES)}.")
        self.save_hyperparameters()
        self.model: AlbertForMaskedLM | None = None
        self.train_metrics = MaskedTokenMetrics()
        self.evaluation_metrics = MaskedTokenMetrics()
        self._last_step = 0

    def configure_model(self) -> None:
        """Build the model once the vocabulary is known; `load_from_checkpoint` knows it only later."""
        if self.model is None and self._trainer is not None:
            data = self.trainer.datamodule  # type: ignore[attr-defined]
            self._build(data.vocab_size, data.sequence_length)

    def _build(self, vocab_size: int, sequence_length: int) -> None:
        pretrained = self.hparams["pretrained"]
        if pretrained is None:
            dropout = self.hparams["dropout"]
            config = AlbertConfig(
                vocab_size=vocab_size,
                max_position_embeddings=max(512, sequence_length),
                hidden_dropout_prob=dropout,
                attention_probs_dropout_prob=dropout,
                **SIZES[self.hparams["size"]],
            )
            self._build_from_config(config)
        else:
            self.model = AlbertForMaskedLM.from_pretrained(pretrained)
            self._check_fits(vocab_size, sequence_length)
        assert self.model is not None
        self.model.train()

    def _build_from_config(self, config: AlbertConfig) -> None:
        # The weights must not depend on how many random numbers were drawn before, such as by another launcher.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(os.environ.get("PL_GLOBAL_SEED", "0")))
            self.model = AlbertForMaskedLM(config)

    def _check_fits(self, vocab_size: int, sequence_length: int) -> None:
        assert self.model is not None
        config = self.model.config
        if vocab_size > config.vocab_size or sequence_length > config.max_position_embeddings:
            raise MisconfigurationException(
                f"model.pretrained={self.hparams['pretrained']!r} has {config.vocab_size} tokens and"
                f" {config.max_position_embeddings} positions, but the data has {vocab_size} tokens in sequences of"
                f" {sequence_length}. HINT: set data.tokenizer to the same name, and a data.sequence_length that fits."
            )

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Logits at the masked positions.

        Args:
            input_ids: ``[batch, length]``, without padding.
            positions: ``[batch, masked]``.

        Returns:
            ``[batch * masked, vocabulary]``.

        """
        assert self.model is not None
        hidden = self.model.albert(input_ids=input_ids).last_hidden_state
        batch, length = input_ids.shape
        starts = torch.arange(0, batch * length, length, device=positions.device)
        logits: Tensor = self.model.predictions(hidden.flatten(0, 1)[(positions + starts[:, None]).flatten()])
        return logits

    def _losses(self, batch: dict[str, Tensor], metrics: MaskedTokenMetrics | None) -> tuple[Tensor, Tensor]:
        """Loss of each masked token and the most likely tokens, both of the shape of ``labels``."""
        labels = batch["labels"].flatten()
        logits = self(batch["input_ids"], batch["positions"])
        losses = functional.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="none")
        predictions = logits.detach().argmax(dim=-1)
        if metrics is not None:
            metrics.update(losses, predictions, labels)
        return losses.view_as(batch["labels"]), predictions.view_as(batch["labels"])

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """Mean loss over the masked tokens; all sequences have as many, so the mean of means is the mean."""
        return self._losses(batch, self.train_metrics)[0].mean()

    def on_train_start(self) -> None:
        """Remember where the run begins."""
        self._last_step = self.trainer.global_step

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """At logged steps, log the means since the last one over all processes; only then do they communicate."""
        step = self.trainer.global_step
        if step == self._last_step:  # a micro-batch that was accumulated
            return
        self._last_step = step
        if step % max(1, self.trainer.log_every_n_steps) == 0:  # type: ignore[attr-defined]
            values = self.train_metrics.compute()
            self.train_metrics.reset()
            rate = self.trainer.optimizers[0].param_groups[0]["lr"]
            self.log_dict({"loss": values["loss"], "accuracy": values["accuracy"]}, prog_bar=True)
            self.log_dict({"learning_rate": rate, **self._position()})

    def _position(self) -> dict[str, float]:
        """Lightning takes the value named ``step`` for the x axis (its own starts at 0), and then omits the epoch."""
        return {"step": float(self.trainer.global_step), "epoch": float(self.current_epoch)}

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Add a batch to the metrics."""
        self._losses(batch, self.evaluation_metrics)

    def on_validation_epoch_end(self) -> None:
        """Log the means over all processes."""
        self._log_evaluation("val")

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Add a batch to the metrics."""
        self._losses(batch, self.evaluation_metrics)

    def on_test_epoch_end(self) -> None:
        """Log the means over all processes."""
        self._log_evaluation("test")

    def _log_evaluation(self, split: str) -> None:
        values = self.evaluation_metrics.compute()
        self.evaluation_metrics.reset()
        # They are equal on all processes already; sync_dist=True keeps Lightning from warning that they might not be.
        self.log_dict({f"{split}_{name}": value for name, value in values.items()}, prog_bar=True, sync_dist=True)
        self.log_dict(self._position(), sync_dist=True)

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> list[dict[str, Any]]:
        """For each sequence: its index, masked positions, true and most likely tokens there, and mean loss."""
        losses, predictions = self._losses(batch, None)
        columns = (batch["index"], batch["positions"], batch["labels"], predictions, losses.mean(dim=1))
        names = ("index", "positions", "labels", "predictions", "loss")
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows if row[0] >= 0]

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW, fused where it can be, with a schedule over all steps of the run."""
        options = self.hparams
        # torch's fused AdamW cannot unscale gradients for clipping, which half precision needs.
        fused = self.trainer.precision != "16-mixed"
        optimizer = torch.optim.AdamW(
            parameter_groups(self, options["weight_decay"]),
            lr=options["learning_rate"],
            betas=tuple(options["betas"]),
            eps=options["epsilon"],
            fused=fused,
        )
        polynomial = {"lr_end": options["end_learning_rate"]} if options["schedule"] == "polynomial" else None
        schedule = get_scheduler(
            options["schedule"],
            optimizer,
            num_warmup_steps=options["warmup_steps"],
            num_training_steps=int(self.trainer.estimated_stepping_batches),
            scheduler_specific_kwargs=polynomial,
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the model's configuration, so that a checkpoint can be loaded without the data."""
        assert self.model is not None
        checkpoint["albert_config"] = self.model.config.to_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Build the model that the checkpoint is of, unless there is one."""
        if self.model is None:
            self._build_from_config(AlbertConfig.from_dict(checkpoint["albert_config"]))


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters with and without weight decay: biases and LayerNorm (all vectors) have none."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
