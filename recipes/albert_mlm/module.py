# SPDX-License-Identifier: Apache-2.0
"""ALBERT with a masked-language-model head, as a LightningModule."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertForMaskedLM, AlbertForPreTraining, PretrainedConfig

from lightning_sagemaker.recipes._common.modules.albert import PRE_LAYER_NORM, encode
from lightning_sagemaker.recipes._common.modules.gather import Rows
from lightning_sagemaker.recipes._common.modules.losses import IGNORED, cross_entropy
from lightning_sagemaker.recipes._common.modules.metrics import LossAndAccuracy
from lightning_sagemaker.recipes._common.modules.pretrained import load_config, load_model
from lightning_sagemaker.recipes._common.modules.recipe_module import Batch, RecipeModule
from lightning_sagemaker.text_files import write_text

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


class PretrainingMetrics(nn.Module):
    """Means over the masked tokens and, if there are two segments, over the sequences, of all processes.

    Args:
        perplexity: Whether to compute the perplexity.

    """

    def __init__(self, perplexity: bool = True) -> None:
        super().__init__()
        self.mlm, self.sop = LossAndAccuracy(), LossAndAccuracy()
        self.ordered = False
        self._perplexity = perplexity

    def compute(self) -> dict[str, Tensor]:
        """``loss`` in nats, ``accuracy`` of masked tokens and ``perplexity``.

        With two segments ``loss`` is the sum of ``mlm_loss`` and ``sop_loss``, and there is ``sop_accuracy``.
        """
        mlm = self.mlm.compute()
        values = mlm | ({"perplexity": mlm["loss"].exp()} if self._perplexity else {})
        if not self.ordered:
            return values
        sop = self.sop.compute()
        order = {"mlm_loss": mlm["loss"], "sop_loss": sop["loss"], "sop_accuracy": sop["accuracy"]}
        return values | order | {"loss": mlm["loss"] + sop["loss"]}

    def reset(self) -> None:
        """Reset the state."""
        self.mlm.reset()
        self.sop.reset()


class AlbertMLM(RecipeModule):
    """Masked-language-model pretraining of ALBERT, from scratch or from pretrained weights.

    The last layer and the logits are computed at the masked positions only: ``[masked tokens, vocabulary]`` instead of
    ``[batch, length, vocabulary]``, with the same loss. With ``data.sentence_order`` the loss is the sum of those of
    masked tokens and of the order of the two segments.

    Args:
        size: ``tiny``, ``base`` or ``large``; overridden by ``pretrained``.
        pretrained: Name or path of weights to start from, with a matching ``data.tokenizer``.
        dropout: Dropout of hidden states and attention; ALBERT trains without.
        pre_layer_norm: Normalize before attention and feed-forward instead of after, from scratch; only these recipes
            can load such a model correctly, transformers' own classes cannot.
        optimization: See :class:`~lightning_sagemaker.recipes._common.modules.recipe_module.RecipeModule`.

    Raises:
        MisconfigurationException: If the size is unknown, or tokenizer and weights do not match.

    """

    pipeline_task = "fill-mask"

    train_metrics: PretrainingMetrics
    evaluation_metrics: PretrainingMetrics

    def __init__(
        self,
        size: str = "base",
        pretrained: str | None = None,
        dropout: float = 0.0,
        pre_layer_norm: bool = False,
        **optimization: Any,
    ) -> None:
        super().__init__(**optimization)
        if size not in SIZES:
            raise MisconfigurationException(f"model.size={size!r} was set. HINT: choose one of {', '.join(SIZES)}.")
        self.save_hyperparameters()
        self.train_metrics = PretrainingMetrics(perplexity=False)
        self.evaluation_metrics = PretrainingMetrics()
        self._encode: Callable[..., Tensor] = encode
        self._rows = Rows()

    def build(self, config: PretrainedConfig | None) -> Any:
        """ALBERT with a masked-language-model head."""
        kind: Any = AlbertForPreTraining if self._orders(config) else AlbertForMaskedLM
        if config is not None:
            return kind(config)
        vocab_size, sequence_length = self.data.vocab_size, self.data.sequence_length
        pretrained = self.hparams["pretrained"]
        if pretrained is not None:
            loaded = load_config(pretrained)
            self._check_fits(loaded, vocab_size, sequence_length)
            return load_model(kind, pretrained, loaded)
        dropout = self.hparams["dropout"]
        made = AlbertConfig(
            architectures=[kind.__name__],
            **{PRE_LAYER_NORM: self.hparams["pre_layer_norm"]},
            vocab_size=vocab_size,
            max_position_embeddings=max(512, sequence_length),
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            classifier_dropout_prob=dropout,
            **SIZES[self.hparams["size"]],
        )
        return kind(made)

    def _orders(self, config: PretrainedConfig | None) -> bool:
        """Whether sentence order is predicted, by the data's setting or a checkpoint's ``config``."""
        if config is not None:
            return "AlbertForPreTraining" in (config.architectures or ())
        return bool(self.data.sentence_order)

    def compile_model(self) -> None:
        """Compile what :meth:`forward` calls; shapes are always the same."""
        self._encode = torch.compile(encode)

    def _check_fits(self, config: PretrainedConfig, vocab_size: int, sequence_length: int) -> None:
        if vocab_size > config.vocab_size or sequence_length > config.max_position_embeddings:
            raise MisconfigurationException(
                f"model.pretrained={self.hparams['pretrained']!r} has {config.vocab_size} tokens and"
                f" {config.max_position_embeddings} positions, but the data has {vocab_size} tokens in sequences of"
                f" {sequence_length}. HINT: set data.tokenizer to the same name, and a data.sequence_length that fits."
            )

    def forward(
        self, input_ids: Tensor, positions: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits of masked tokens and of the segments' order.

        Args:
            input_ids: Token ids ``[batch, length]``, without padding.
            positions: Masked positions ``[batch, masked]``.
            token_type_ids: Segment numbers ``[batch, length]``, with two segments.

        Returns:
            ``[batch * masked, vocabulary]``; with two segments also ``[batch, 2]``: in order, swapped.

        """
        if token_type_ids is None:
            hidden = self._encode(self.model.albert, input_ids, None, positions)
            return self.model.predictions(hidden.flatten(0, 1)), None
        with_cls = torch.cat([torch.zeros_like(positions[:, :1]), positions], dim=1)
        hidden = self._encode(self.model.albert, input_ids, token_type_ids, with_cls)
        albert = self.model.albert
        pooled = albert.pooler_activation(albert.pooler(hidden[:, 0]))
        return self.model.predictions(hidden[:, 1:].flatten(0, 1)), self.model.sop_classifier(pooled)

    def _losses(self, batch: Batch, metrics: PretrainingMetrics) -> tuple[Tensor, Tensor | None]:
        """Losses of all masked tokens, and of the segments' order if there are two; adds to ``metrics``."""
        labels = batch["labels"].flatten()
        logits, order = self(batch["input_ids"], batch["positions"], batch.get("token_type_ids"))
        losses, right = cross_entropy(logits.float(), labels)
        metrics.mlm.update(losses, right, (labels != IGNORED).sum())
        if order is None:
            return losses, None
        swapped = batch["swapped"]
        order_losses, right = cross_entropy(order.float(), swapped)
        metrics.ordered = True
        metrics.sop.update(order_losses, right, (swapped != IGNORED).sum())
        return losses, order_losses

    def training_loss(self, batch: Batch) -> Tensor:
        """Mean over the masked tokens, plus the mean over the sequences for the order of the segments.

        All sequences have the same number of masked tokens, so the mean of the processes' means is the global mean.
        """
        losses, order = self._losses(batch, self.train_metrics)
        return losses.mean() if order is None else losses.mean() + order.mean()

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
        labels = batch["labels"]
        logits, _ = self(batch["input_ids"], batch["positions"], batch.get("token_type_ids"))
        predictions: Tensor = logits.argmax(dim=1).view_as(labels)
        losses, _ = cross_entropy(logits.float(), labels.flatten())
        columns = {"positions": batch["positions"], "labels": labels, "predictions": predictions}
        self._rows.add(batch["index"], {**columns, "loss": losses.view_as(labels).mean(dim=1)})
        return predictions

    def write_predictions(self, folder: Path) -> None:
        """Write ``predictions.jsonl``: a line for each sequence, in order."""
        index, columns = self._rows.gather(self.trainer)
        if self.trainer.is_global_zero:
            names = ("index", *columns)
            rows = zip(index.tolist(), *(column.tolist() for column in columns.values()), strict=True)
            lines = [json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows]
            write_text(folder / "predictions.jsonl", "".join(lines))
