# SPDX-License-Identifier: Apache-2.0
"""ALBERT with a masked-language-model head, as a LightningModule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.nn import functional
from transformers import AlbertConfig, AlbertForMaskedLM, AutoModelForMaskedLM, PretrainedConfig

from lightning_sagemaker.recipes._common.files import write_text
from lightning_sagemaker.recipes._common.gather import Rows
from lightning_sagemaker.recipes._common.metrics import LossAndAccuracy
from lightning_sagemaker.recipes._common.module import Batch, RecipeModule
from lightning_sagemaker.recipes._common.pretrained import load_config, load_model
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


class MaskedTokenMetrics(LossAndAccuracy):
    """Mean loss, accuracy and perplexity over masked tokens of all processes."""

    def compute(self) -> dict[str, Tensor]:
        """``loss`` in nats, ``accuracy`` and ``perplexity``; NaN without any token."""
        values = super().compute()
        return values | {"perplexity": values["loss"].exp()}


class AlbertMLM(RecipeModule):
    """Masked-language-model pretraining of ALBERT, from scratch or from weights.

    Logits are computed at the masked positions only: ``[masked tokens, vocabulary]`` instead of
    ``[batch, length, vocabulary]``, with the same loss.

    Not supported: sentence-order prediction.

    Args:
        size: ``tiny``, ``base`` or ``large``; what ``pretrained`` says goes before it.
        pretrained: Name or path of weights to start from, with a matching ``data.tokenizer``.
        dropout: Of hidden states and attention; ALBERT trains without.
        optimization: See :class:`~lightning_sagemaker.recipes._common.module.RecipeModule`.

    Raises:
        MisconfigurationException: If the size is unknown, or tokenizer and weights do not match.

    """

    pipeline_task = "fill-mask"

    def __init__(
        self,
        size: str = "base",
        pretrained: str | None = None,
        dropout: float = 0.0,
        **optimization: Any,
    ) -> None:
        super().__init__(**optimization)
        if size not in SIZES:
            raise MisconfigurationException(f"model.size={size!r} was set. HINT: choose one of {', '.join(SIZES)}.")
        self.save_hyperparameters()
        self.train_metrics = LossAndAccuracy()
        self.evaluation_metrics = MaskedTokenMetrics()
        self._rows = Rows()

    def build(self, config: PretrainedConfig | None) -> Any:
        """ALBERT with a masked-language-model head."""
        if config is not None:
            return AlbertForMaskedLM(config)
        vocab_size, sequence_length = self.data.vocab_size, self.data.sequence_length
        pretrained = self.hparams["pretrained"]
        if pretrained is not None:
            loaded = load_config(pretrained)
            self._check_fits(loaded, vocab_size, sequence_length)
            return load_model(AutoModelForMaskedLM, pretrained, loaded)
        dropout = self.hparams["dropout"]
        made = AlbertConfig(
            vocab_size=vocab_size,
            max_position_embeddings=max(512, sequence_length),
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            **SIZES[self.hparams["size"]],
        )
        return AlbertForMaskedLM(made)

    def _check_fits(self, config: PretrainedConfig, vocab_size: int, sequence_length: int) -> None:
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
        hidden = self.model.albert(input_ids=input_ids).last_hidden_state
        batch, length = input_ids.shape
        starts = torch.arange(0, batch * length, length, device=positions.device)
        logits: Tensor = self.model.predictions(hidden.flatten(0, 1)[(positions + starts[:, None]).flatten()])
        return logits

    def _losses(self, batch: Batch, metrics: LossAndAccuracy | None) -> tuple[Tensor, Tensor]:
        """Loss of each masked token and the most likely tokens, both of the shape of ``labels``."""
        labels = batch["labels"].flatten()
        logits = self(batch["input_ids"], batch["positions"])
        losses = functional.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="none")
        predictions = logits.detach().argmax(dim=-1)
        if metrics is not None:
            metrics.update(losses, predictions == labels, (labels != IGNORED).sum())
        return losses.view_as(batch["labels"]), predictions.view_as(batch["labels"])

    def training_loss(self, batch: Batch) -> Tensor:
        """Mean loss over the masked tokens; all sequences have as many, so the mean of means is the mean."""
        return self._losses(batch, self.train_metrics)[0].mean()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add a batch to the metrics."""
        self._losses(batch, self.evaluation_metrics)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Add a batch to the metrics."""
        self._losses(batch, self.evaluation_metrics)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Keep, for each sequence, masked positions, true and most likely tokens there, and the mean loss.

        Returns:
            The most likely tokens: ``[batch, masked]``.

        """
        losses, predictions = self._losses(batch, None)
        columns = {name: batch[name] for name in ("positions", "labels")}
        self._rows.add(batch["index"], {**columns, "predictions": predictions, "loss": losses.mean(dim=1)})
        return predictions

    def write_predictions(self, folder: Path) -> None:
        """``predictions.jsonl``: a line for each sequence, in order."""
        index, columns = self._rows.gather(self.trainer)
        if self.trainer.is_global_zero:
            names = ("index", *columns)
            rows = zip(index.tolist(), *(column.tolist() for column in columns.values()), strict=True)
            lines = [json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows]
            write_text(folder / "predictions.jsonl", "".join(lines))
