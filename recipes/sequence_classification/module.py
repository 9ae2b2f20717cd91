# SPDX-License-Identifier: Apache-2.0
"""A transformer that classifies texts, as a LightningModule."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PretrainedConfig

from lightning_sagemaker.recipes._common.data.table import Mapped
from lightning_sagemaker.recipes._common.modules.fine_tuning import FineTunedModule
from lightning_sagemaker.recipes._common.modules.first_token import first_token_only
from lightning_sagemaker.recipes._common.modules.gather import Rows
from lightning_sagemaker.recipes._common.modules.metrics import LossAndAccuracy
from lightning_sagemaker.recipes._common.modules.pretrained import CONFIG_KEY
from lightning_sagemaker.recipes._common.modules.recipe_module import Batch
from lightning_sagemaker.recipes._common.outputs.pictures import confusion_matrix
from lightning_sagemaker.recipes._common.outputs.predictions import predictions_table
from lightning_sagemaker.recipes.sequence_classification.calibration import calibrate
from lightning_sagemaker.recipes.sequence_classification.decisions import AUTO, CALIBRATION, Decision, check_option
from lightning_sagemaker.recipes.sequence_classification.evaluation_page import evaluation_page, findings
from lightning_sagemaker.recipes.sequence_classification.glue import TASKS
from lightning_sagemaker.recipes.sequence_classification.labels import MULTI, REGRESSION, SINGLE, LabelScheme
from lightning_sagemaker.recipes.sequence_classification.metrics import evaluate, losses, report
from lightning_sagemaker.recipes.sequence_classification.token_dropout import TokenDropout
from lightning_sagemaker.text_files import write_text

_PROBLEM_TYPES = {SINGLE: "single_label_classification", MULTI: "multi_label_classification", REGRESSION: "regression"}
"""Problem -> transformers' ``problem_type``."""

_LABEL_DELIMITER = "|"


class SequenceClassifier(FineTunedModule):
    """Fine-tunes a transformer to classify texts or pairs of texts, or trains a small one from scratch.

    The loss is the mean over the samples (with class weights, whose mean over the training samples is 1), so gradients
    do not depend on the number of processes.

    Args:
        pretrained: Hugging Face folder, hub name, or a ``.ckpt`` of these recipes. Default: from scratch.
        size: ``tiny``, ``small`` or ``base`` BERT, from scratch.
        dropout: Dropout of hidden states, attention and classifier. Default: the model's own.
        label_smoothing: Share of the label spread over all classes; single-label problems only.
        token_dropout: Share of a training text's tokens that are replaced by the mask token, different ones each time.
        threshold: Probability from which a class is predicted in multi-label problems, and the second class in binary
            ones; ``auto``: the value with the best F1 in the last validation (0.5 before it).
        temperature: Divisor of the outputs before softmax or sigmoid; ``auto``: the value that fitted the last
            validation best (1 before it).
        optimization: See :class:`~lightning_sagemaker.recipes._common.modules.recipe_module.RecipeModule`.

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
        token_dropout: float = 0.0,
        threshold: float | str = 0.5,
        temperature: float | str = 1.0,
        **optimization: Any,
    ) -> None:
        super().__init__(size, **optimization)
        if not 0 <= token_dropout < 1:
            raise MisconfigurationException(
                f"model.token_dropout={token_dropout} was set. HINT: it must be at least 0 and below 1."
            )
        check_option("threshold", threshold, 1.0)
        check_option("temperature", temperature, math.inf)
        self.save_hyperparameters()
        self.train_metrics = LossAndAccuracy()
        self._weights: Tensor | None = None
        self._token_dropout: TokenDropout | None = None
        self._rows: list[Rows] = []
        self._evaluated: list[tuple[Tensor, Tensor, Tensor]] = []
        self._report: dict[str, Any] = {}

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
        """Macro F1, in which all classes count the same; a GLUE task's own metric; for regression the loss."""
        task, problem = self.data.task, self.data.scheme.problem
        if task:
            names = TASKS[task].metrics
            return f"val_{names[0]}" if len(names) == 1 else "val_combined_score"
        return "val_loss" if problem == REGRESSION else "val_f1_macro"

    def build(self, config: PretrainedConfig | None) -> Any:
        """The model; with ``fused`` its last layer is computed at the first token only."""
        model = super().build(config)
        if self._fused:
            first_token_only(model)
        if config is None and self.trainer.training and hasattr(model.config, CALIBRATION):
            delattr(model.config, CALIBRATION)  # of the model that training starts from
        return model

    @property
    def scheme(self) -> LabelScheme:
        """Problem and classes, as the model has them."""
        config = self.model.config
        problem = next(ours for ours, theirs in _PROBLEM_TYPES.items() if theirs == config.problem_type)
        names = () if problem == REGRESSION else tuple(config.id2label[i] for i in sorted(config.id2label))
        return LabelScheme(problem, names)

    @property
    def decision(self) -> Decision:
        """How outputs become classes, by the options and the last validation's calibration."""
        found = getattr(self.model.config, CALIBRATION, None)
        return Decision.of(self.hparams["temperature"], self.hparams["threshold"], found)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Logits ``[batch, outputs]`` of tokens, mask and types ``[batch, length]``."""
        types = self.token_types(token_type_ids)
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, **types).logits
        return logits

    def _logits(self, batch: Batch) -> Tensor:
        logits: Tensor = self(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
        return logits.float()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Load the checkpoint, with the calibration of the validation before it."""
        super().on_load_checkpoint(checkpoint)
        self.take_findings(checkpoint[CONFIG_KEY])

    def take_findings(self, config: Mapping[str, Any]) -> None:
        """Take over the calibration in a checkpoint's model configuration."""
        if CALIBRATION in config:
            setattr(self.model.config, CALIBRATION, config[CALIBRATION])

    def on_fit_start(self) -> None:
        """Take the class weights and the special tokens from the data."""
        if self.hparams["token_dropout"]:
            self._token_dropout = TokenDropout(self.hparams["token_dropout"], self.data.load_tokenizer())
        weights = self.data.weights
        self._weights = None if weights is None else torch.tensor(weights, device=self.device)

    def training_loss(self, batch: Batch) -> Tensor:
        """The mean loss of a batch; updates ``train_metrics``."""
        if self._token_dropout is not None:
            batch = {**batch, "input_ids": self._token_dropout(batch["input_ids"])}
        scheme, logits, labels = self.scheme, self._logits(batch), batch["labels"]
        each = losses(scheme, logits, labels, self.hparams["label_smoothing"])
        if self._weights is not None:
            each = each * self._weights[labels.long()]
        self.train_metrics.update(each, _is_correct(scheme, logits.detach(), labels, self.decision))
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

    def _end_evaluation(self, is_validation: bool) -> dict[str, float]:
        """Metrics over the samples of all processes, equal on all of them; MNLI's second set as ``_mm``."""
        values: dict[str, float] = {}
        self._evaluated = []
        for rows, suffix in zip(self._rows, ("", "_mm"), strict=False):
            index, columns = rows.gather(self.trainer)
            self._evaluated.append((index, columns["logits"], columns["labels"]))
            if is_validation and not suffix:
                self._calibrate(columns["logits"], columns["labels"])
            found = evaluate(self.scheme, columns["logits"], columns["labels"], self.decision)
            values |= {f"{name}{suffix}": value for name, value in found.items()}
        names = TASKS[self.data.task].metrics if self.data.task else ()
        if len(names) > 1:
            values["combined_score"] = sum(values[name] for name in names) / len(names)
        return values

    def _say_missing(self) -> None:
        auto = [name for name in ("temperature", "threshold") if self.hparams[name] == AUTO]
        if auto and getattr(self.model.config, CALIBRATION, None) is None:
            self.data.say("model.%s=auto has no effect: the model was saved without a validation", auto[0])

    def _calibrate(self, logits: Tensor, labels: Tensor) -> None:
        """Keep the calibration in the model's configuration, which is part of checkpoints and exports."""
        if self.scheme.problem == REGRESSION or self.trainer.sanity_checking or not len(logits):
            return
        setattr(self.model.config, CALIBRATION, calibrate(self.scheme, logits, labels))

    def on_validation_epoch_start(self) -> None:
        """Clear the outputs of an earlier evaluation."""
        self._start_evaluation()

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Keep the outputs."""
        self._evaluate(batch, dataloader_idx)

    def on_validation_epoch_end(self) -> None:
        """Log the metrics."""
        self.log_evaluation({f"val_{name}": value for name, value in self._end_evaluation(True).items()})

    def on_test_epoch_start(self) -> None:
        """Clear the outputs of an earlier evaluation."""
        self._start_evaluation()
        self._say_missing()

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Keep the outputs."""
        self._evaluate(batch, dataloader_idx)

    def on_test_epoch_end(self) -> None:
        """Log the metrics."""
        self.log_evaluation({f"test_{name}": value for name, value in self._end_evaluation(False).items()})

    def on_predict_epoch_start(self) -> None:
        """Clear the outputs of an earlier evaluation."""
        self._start_evaluation()
        self._say_missing()

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Keep the outputs; returns the probabilities ``[batch, outputs]`` without padding."""
        logits = self._evaluate(batch, dataloader_idx)
        return self.decision.probabilities(self.scheme, logits[batch["index"] >= 0])

    def write_predictions(self, folder: Path) -> None:
        """Write ``predictions.csv``, in the input's order and with its columns; MNLI's second set as ``_mm``."""
        for split, rows, suffix in zip(self.data.predicted_splits, self._rows, ("", "_mm"), strict=False):
            index, columns = rows.gather(self.trainer)
            if self.trainer.is_global_zero:
                records = self.data.records(split)
                chances = self.decision.probabilities(self.scheme, columns["logits"])
                rows_of = (Mapped(records.__getitem__, index.tolist()), self._added(chances))
                write_text(folder / f"predictions{suffix}.csv", predictions_table(index.tolist(), *rows_of))

    def write_evaluation(self, folder: Path, split: str) -> None:
        """Write ``report-SPLIT.json``; called on rank zero."""
        self._report = {}
        if not self._evaluated:
            return
        index, logits, labels = self._evaluated[0]
        found = getattr(self.model.config, CALIBRATION, None)
        self._report = report(self.scheme, logits, labels, self.decision, found or {})
        if self._report:
            for pair in self._report.get("most_confused", ()):
                pair["samples"] = index[pair["samples"]].tolist()
            write_text(folder / f"report-{split}.json", json.dumps(self._report, indent=2) + "\n")

    def draw_evaluation(self, folder: Path, split: str) -> None:
        """Write ``report-SPLIT.html`` and ``confusion-SPLIT.png``; called on rank zero."""
        if self._report:
            texts = self.data.texts("val" if split == "validate" else split)
            write_text(folder / f"report-{split}.html", evaluation_page(f"Evaluation: {split}", self._report, texts))
        if "confusion" in self._report:
            picture = folder / f"confusion-{split}.png"
            confusion_matrix(self._report["confusion"], self.scheme.names, picture, self.trainer)

    def evaluation_findings(self) -> list[tuple[str, str]]:
        """The most confused classes, the calibration error, and the best threshold."""
        return findings(self._report) if self._report else []

    def _added(self, chances: Tensor) -> dict[str, list[Any]]:
        """Name of a new column -> predictions or probabilities."""
        scheme = self.scheme
        if scheme.problem == REGRESSION:
            return {"prediction": [f"{row[0]:.6g}" for row in chances.tolist()]}
        classes = self.decision.classes(scheme, chances).tolist()
        if scheme.problem == MULTI:
            named = (compress(scheme.names, row) for row in classes)
            predicted = [_LABEL_DELIMITER.join(names) for names in named]
        else:
            predicted = [scheme.names[number] for number in classes]
        columns = zip(scheme.names, chances.T.tolist(), strict=True)
        return {"prediction": predicted, **{f"p_{name}": [f"{p:.6g}" for p in column] for name, column in columns}}


def _is_correct(scheme: LabelScheme, logits: Tensor, labels: Tensor, decision: Decision) -> Tensor | None:
    """Whether each sample is right, ``[samples]``; ``None`` for regression."""
    if scheme.problem == REGRESSION:
        return None
    right = decision.classes(scheme, decision.probabilities(scheme, logits)) == labels.long()
    return right.all(dim=1) if right.ndim == 2 else right
