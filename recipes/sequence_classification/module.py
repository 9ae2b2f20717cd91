# SPDX-License-Identifier: Apache-2.0
"""A transformer that classifies texts, as a LightningModule."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PretrainedConfig

from lightning_sagemaker.recipes._common.files import write_text
from lightning_sagemaker.recipes._common.fine_tuning import FineTunedModule
from lightning_sagemaker.recipes._common.first_token import first_token_only
from lightning_sagemaker.recipes._common.gather import Rows
from lightning_sagemaker.recipes._common.metrics import LossAndAccuracy
from lightning_sagemaker.recipes._common.module import Batch
from lightning_sagemaker.recipes._common.pictures import confusion_matrix
from lightning_sagemaker.recipes.sequence_classification.glue import TASKS
from lightning_sagemaker.recipes.sequence_classification.labels import MULTI, REGRESSION, SINGLE, LabelScheme
from lightning_sagemaker.recipes.sequence_classification.metrics import evaluate, losses, probabilities, report

_PROBLEM_TYPES = {SINGLE: "single_label_classification", MULTI: "multi_label_classification", REGRESSION: "regression"}
"""Ours -> transformers'."""

_LABEL_DELIMITER = "|"


class SequenceClassifier(FineTunedModule):
    """Fine-tunes a transformer to classify texts or pairs of texts, or trains a small one from scratch.

    The loss is the mean over the samples (with class weights, whose mean over the training samples is 1), so gradients
    on any number of processes are those of one.

    Args:
        pretrained: Hugging Face folder, hub name, or a ``.ckpt`` of these recipes. Default: from scratch.
        size: ``tiny``, ``small`` or ``base`` BERT, from scratch.
        dropout: Of hidden states, attention and classifier. Default: the model's own.
        label_smoothing: Share of the label spread over all classes; single-label problems only.
        threshold: Probability from which a class counts, in multi-label problems.
        optimization: See :class:`~lightning_sagemaker.recipes._common.module.RecipeModule`.

    Raises:
        MisconfigurationException: If a value is unknown or out of range, or the data does not fit the weights.

    """

    pipeline_task = "text-classification"
    auto_model = AutoModelForSequenceClassification
    length_option = "max_length"

    train_metrics: LossAndAccuracy

    def __init__(
        self,
        pretrained: str | None = None,
        size: str = "tiny",
        dropout: float | None = None,
        label_smoothing: float = 0.0,
        threshold: float = 0.5,
        **optimization: Any,
    ) -> None:
        super().__init__(size, **optimization)
        self.save_hyperparameters()
        self.train_metrics = LossAndAccuracy()
        self._weights: Tensor | None = None
        self._rows: list[Rows] = []
        self._evaluated: list[tuple[Tensor, Tensor, Tensor]] = []

    def settings(self) -> dict[str, Any]:
        """One output for each class of the data, by name."""
        scheme = self.data.scheme
        names = scheme.names or ("score",)
        return {
            "id2label": dict(enumerate(names)),
            "label2id": {name: index for index, name in enumerate(names)},
            "problem_type": _PROBLEM_TYPES[scheme.problem],
        }

    @property
    def default_monitor(self) -> str:  # type: ignore[override]  # it depends on the data
        """Macro F1, in which small classes count as much as large ones; a GLUE task's own metric; loss of scores."""
        task, problem = self.data.task, self.data.scheme.problem
        if task:
            names = TASKS[task].metrics
            return f"val_{names[0]}" if len(names) == 1 else "val_combined_score"
        return "val_loss" if problem == REGRESSION else "val_f1_macro"

    def build(self, config: PretrainedConfig | None) -> Any:
        """The model, its last layer computed where the classifier reads it."""
        model = super().build(config)
        if self._fused:
            first_token_only(model)
        return model

    @property
    def scheme(self) -> LabelScheme:
        """Problem and classes, as the model has them."""
        config = self.model.config
        problem = next(ours for ours, theirs in _PROBLEM_TYPES.items() if theirs == config.problem_type)
        names = () if problem == REGRESSION else tuple(config.id2label[i] for i in sorted(config.id2label))
        return LabelScheme(problem, names)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Logits ``[batch, outputs]`` of tokens, mask and types ``[batch, length]``."""
        types = self.token_types(token_type_ids)
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, **types).logits
        return logits

    def _logits(self, batch: Batch) -> Tensor:
        logits: Tensor = self(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
        return logits.float()

    def on_fit_start(self) -> None:
        """Take the class weights from the data."""
        weights = self.data.weights
        self._weights = None if weights is None else torch.tensor(weights, device=self.device)

    def training_loss(self, batch: Batch) -> Tensor:
        """The mean loss."""
        scheme, logits, labels = self.scheme, self._logits(batch), batch["labels"]
        each = losses(scheme, logits, labels, self.hparams["label_smoothing"])
        if self._weights is not None:
            each = each * self._weights[labels.long()]
        self.train_metrics.update(each, _right(scheme, logits.detach(), labels, self.hparams["threshold"]))
        return each.mean()

    def _start_evaluation(self) -> None:
        self._rows = []

    def _evaluate(self, batch: Batch, loader: int) -> Tensor:
        while len(self._rows) <= loader:
            self._rows.append(Rows())
        logits = self._logits(batch)
        columns = {"logits": logits}
        if "labels" in batch:
            columns["labels"] = batch["labels"]
        self._rows[loader].add(batch["index"], columns)
        return logits

    def _end_evaluation(self) -> dict[str, float]:
        """Metrics over the samples of all processes, equal on all of them; MNLI's second set as ``_mm``."""
        values: dict[str, float] = {}
        self._evaluated = []
        for rows, suffix in zip(self._rows, ("", "_mm"), strict=False):
            index, columns = rows.gather(self.trainer)
            self._evaluated.append((index, columns["logits"], columns["labels"]))
            found = evaluate(self.scheme, columns["logits"], columns["labels"], self.hparams["threshold"])
            values |= {f"{name}{suffix}": value for name, value in found.items()}
        names = TASKS[self.data.task].metrics if self.data.task else ()
        if len(names) > 1:
            values["combined_score"] = sum(values[name] for name in names) / len(names)
        return values

    def on_validation_epoch_start(self) -> None:
        """Forget what was evaluated before."""
        self._start_evaluation()

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Keep the outputs."""
        self._evaluate(batch, dataloader_idx)

    def on_validation_epoch_end(self) -> None:
        """Log the metrics."""
        self.log_evaluation({f"val_{name}": value for name, value in self._end_evaluation().items()})

    def on_test_epoch_start(self) -> None:
        """Forget what was evaluated before."""
        self._start_evaluation()

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Keep the outputs."""
        self._evaluate(batch, dataloader_idx)

    def on_test_epoch_end(self) -> None:
        """Log the metrics."""
        self.log_evaluation({f"test_{name}": value for name, value in self._end_evaluation().items()})

    def on_predict_epoch_start(self) -> None:
        """Forget what was evaluated before."""
        self._start_evaluation()

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Keep the outputs; returns the probabilities ``[batch, outputs]`` without padding."""
        logits = self._evaluate(batch, dataloader_idx)
        return probabilities(self.scheme, logits[batch["index"] >= 0])

    def write_predictions(self, folder: Path) -> None:
        """``predictions.csv`` in the order of the input, and ``predictions_mm.csv`` for MNLI's second set."""
        for number, (rows, suffix) in enumerate(zip(self._rows, ("", "_mm"), strict=False)):
            index, columns = rows.gather(self.trainer)
            if self.trainer.is_global_zero:
                chances = probabilities(self.scheme, columns["logits"])
                text = self._table(index, chances, self.data.predicted_records(number))
                write_text(folder / f"predictions{suffix}.csv", text)

    def write_evaluation(self, folder: Path, split: str) -> None:
        """``report-SPLIT.json`` and ``confusion-SPLIT.png``, on rank zero."""
        if not self._evaluated:
            return
        _, logits, labels = self._evaluated[0]
        content = report(self.scheme, logits, labels)
        if content:
            write_text(folder / f"report-{split}.json", json.dumps(content, indent=2) + "\n")
            picture = folder / f"confusion-{split}.png"
            confusion_matrix(content["confusion"], self.scheme.names, picture, self.trainer)

    def _table(self, index: Tensor, chances: Tensor, records: list[dict[str, Any]]) -> str:
        """The input's columns in their order, between the record's number and what is predicted for it."""
        scheme = self.scheme
        inputs = list(records[0])
        added = ["prediction", *(f"p_{name}" for name in scheme.names)]
        # A table that was predicted before has such columns already: its own stay.
        taken = {"index", *inputs}
        added = [name if name not in taken else f"new_{name}" for name in added]
        shown = [name for name in inputs if name != "index"]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["index", *shown, *added])
        for number, row in zip(index.tolist(), chances.tolist(), strict=True):
            record = records[number]
            writer.writerow([number, *(record[name] for name in shown), *self._predicted(row)])
        return text.getvalue()

    def _predicted(self, row: list[float]) -> list[str]:
        scheme = self.scheme
        if scheme.problem == REGRESSION:
            return [f"{row[0]:.6g}"]
        if scheme.problem == MULTI:
            chosen = [name for name, p in zip(scheme.names, row, strict=True) if p >= self.hparams["threshold"]]
        else:
            chosen = [scheme.names[max(range(len(row)), key=row.__getitem__)]]
        return [_LABEL_DELIMITER.join(chosen), *(f"{p:.6g}" for p in row)]


def _right(scheme: LabelScheme, logits: Tensor, labels: Tensor, threshold: float) -> Tensor | None:
    """``[samples]`` whether each is right; regression has no such thing."""
    if scheme.problem == REGRESSION:
        return None
    if scheme.problem == MULTI:
        return ((logits.sigmoid() >= threshold) == (labels > 0.5)).all(dim=1)
    return logits.argmax(dim=1) == labels
