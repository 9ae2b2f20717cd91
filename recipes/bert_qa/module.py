# SPDX-License-Identifier: Apache-2.0
"""A transformer that finds answers in texts, as a LightningModule."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForQuestionAnswering

from lightning_sagemaker.recipes._common.data.table import Mapped
from lightning_sagemaker.recipes._common.modules.fine_tuning import FineTunedModule
from lightning_sagemaker.recipes._common.modules.gather import Rows
from lightning_sagemaker.recipes._common.modules.metrics import LossAndAccuracy
from lightning_sagemaker.recipes._common.modules.recipe_module import Batch
from lightning_sagemaker.recipes._common.outputs.predictions import predictions_table
from lightning_sagemaker.recipes.bert_qa.answers import Answers, best_spans, choose_answers, merge_windows
from lightning_sagemaker.recipes.bert_qa.metrics import evaluate
from lightning_sagemaker.text_files import write_text

AUTO = "auto"


class QuestionAnswerer(FineTunedModule):
    """Fine-tunes a transformer to find answers in a context, or trains a small one from scratch.

    Args:
        pretrained: Hugging Face folder, hub name, or a ``.ckpt`` of these recipes. Default: from scratch.
        size: ``tiny``, ``small`` or ``base`` BERT, from scratch.
        dropout: Dropout of hidden states and attention. Default: the model's own.
        n_best_size: Maximum answers for each question in ``nbest_predictions.json``.
        max_answer_length: Maximum tokens of an answer.
        null_score_threshold: No answer is predicted if its score exceeds the best answer's by more than this; ``auto``:
            the value with the best F1 in the last validation (0 before it).
        optimization: See :class:`~lightning_sagemaker.recipes._common.modules.recipe_module.RecipeModule`.

    Raises:
        MisconfigurationException: If a value is unknown or out of range, or the data does not fit the weights.

    """

    pipeline_task = "question-answering"
    auto_model = AutoModelForQuestionAnswering
    length_option = "max_seq_length"
    default_monitor = "val_f1"

    train_metrics: LossAndAccuracy

    def __init__(
        self,
        pretrained: str | None = None,
        size: str = "tiny",
        dropout: float | None = None,
        n_best_size: int = 20,
        max_answer_length: int = 30,
        null_score_threshold: float | str = 0.0,
        **optimization: Any,
    ) -> None:
        super().__init__(size, **optimization)
        if n_best_size < 1 or max_answer_length < 1:
            raise MisconfigurationException(
                f"model.n_best_size={n_best_size} and model.max_answer_length={max_answer_length} were set."
                " HINT: both must be at least 1."
            )
        if isinstance(null_score_threshold, str) and null_score_threshold != AUTO:
            raise MisconfigurationException(
                f"model.null_score_threshold={null_score_threshold!r} was set. HINT: use a number, or {AUTO}."
            )
        self.save_hyperparameters()
        self.train_metrics = LossAndAccuracy()
        self._rows = Rows()
        self._answers: Answers | None = None
        tuned = 0.0 if isinstance(null_score_threshold, str) else null_score_threshold
        self.null_threshold: Tensor
        self.register_buffer("null_threshold", torch.tensor(tuned, dtype=torch.float64))

    def settings(self) -> dict[str, Any]:
        """Scores of the answer's start and end, whatever the pretrained model has classified."""
        return {"num_labels": 2}

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of each token to be the first and the last of the answer, each ``[batch, length]`` like the inputs."""
        output = self.model(input_ids=input_ids, attention_mask=attention_mask, **self.token_types(token_type_ids))
        # Padding is masked, so that a loss does not depend on what else is in the batch.
        padding = attention_mask == 0
        lowest = torch.finfo(torch.float32).min
        return (
            output.start_logits.float().masked_fill(padding, lowest),
            output.end_logits.float().masked_fill(padding, lowest),
        )

    def _scores(self, batch: Batch) -> tuple[Tensor, Tensor]:
        scores: tuple[Tensor, Tensor] = self(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
        return scores

    def training_loss(self, batch: Batch) -> Tensor:
        """The mean loss of a batch; updates ``train_metrics``."""
        start, end = self._scores(batch)
        losses = span_losses(start, end, batch["labels"])
        found = torch.stack([start.argmax(dim=1), end.argmax(dim=1)], dim=1)
        self.train_metrics.update(losses, (found == batch["labels"]).all(dim=1))
        return losses.mean()

    def _evaluate(self, batch: Batch) -> Tensor:
        start, end = self._scores(batch)
        columns = best_spans(
            start, end, batch["in_context"], self.hparams["n_best_size"], self.hparams["max_answer_length"]
        )
        self._rows.add(batch["index"], {**columns, "loss": span_losses(start, end, batch["labels"])})
        return columns["start"]

    def _gather(self, split: str) -> tuple[Answers, float]:
        """The answers to the questions of a split that were asked, equal on all processes, and the mean loss."""
        windows = self.data.splits[split]
        index, columns = self._rows.gather(self.trainer)
        arrays = {name: column.numpy() for name, column in columns.items()}
        question = windows.windows.question[index.numpy()]
        shift = windows.shift(index.numpy())
        candidates = merge_windows(question, arrays, shift, self.hparams["n_best_size"])
        spans = zip(candidates.question, candidates.first, candidates.last, strict=True)
        texts = [windows.text(*map(int, span)) for span in spans]
        null = np.full(windows.num_questions, np.inf)
        np.minimum.at(null, question, arrays["null"].astype(np.float64))
        # With limited batches, as in Lightning's sanity check, not all questions are asked.
        asked = np.flatnonzero(np.isfinite(null))
        ids = [windows.texts["questions"][number]["id"] for number in asked]
        candidates = replace(candidates, question=np.searchsorted(asked, candidates.question))
        threshold = float(self.null_threshold) if self.data.version_2_with_negative else None
        answers = choose_answers(ids, texts, candidates, null[asked], threshold)
        return answers, float(columns["loss"].double().mean())

    def _end_evaluation(self, split: str) -> dict[str, float]:
        answers, loss = self._gather(split)
        records = self.data.splits[split].texts["questions"]
        golds = {entry["id"]: entry["answers"] for entry in records}
        values = {"loss": loss}
        if self.data.version_2_with_negative:
            tuned = evaluate(golds, answers.best, answers.null_odds)
            values |= {name: value for name, value in tuned.items() if name.startswith("best_")}
            if self.hparams["null_score_threshold"] == AUTO and split == "val":
                self.null_threshold.fill_(tuned["best_f1_thresh"])
                threshold = tuned["best_f1_thresh"]
                chosen = {
                    name: "" if answers.null_odds[name] > threshold else text for name, text in answers.best.items()
                }
                answers = Answers(chosen, answers.best, answers.nbest, answers.null_odds)
        self._answers = answers
        return values | evaluate(golds, answers.predictions)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Keep the best spans."""
        self._evaluate(batch)

    def on_validation_epoch_end(self) -> None:
        """Log the metrics."""
        self.log_evaluation({f"val_{name}": value for name, value in self._end_evaluation("val").items()})

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Keep the best spans."""
        self._evaluate(batch)

    def on_test_epoch_end(self) -> None:
        """Log the metrics."""
        self.log_evaluation({f"test_{name}": value for name, value in self._end_evaluation("test").items()})

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Keep the best spans; returns the positions of their first tokens in the inputs: ``[batch, spans]``."""
        return self._evaluate(batch)

    def write_predictions(self, folder: Path) -> None:
        """Write ``predictions.json``, ``nbest_predictions.json``, ``null_odds.json``, and ``predictions.csv``."""
        (split,) = self.data.predicted_splits
        self._answers, _ = self._gather(split)
        if self.trainer.is_global_zero:
            self.write_evaluation(folder, "predict")
            write_text(folder / "predictions.csv", self._table(self._answers, split))

    def _table(self, answers: Answers, split: str) -> str:
        """The input's columns with the answer to each question that was asked, and its probability among the n best."""
        records = self.data.records(split)
        ids = [entry["id"] for entry in self.data.splits[split].texts["questions"]]
        asked = [number for number, name in enumerate(ids) if name in answers.predictions]
        names = [ids[number] for number in asked]
        added: dict[str, list[Any]] = {"prediction": [answers.predictions[name] for name in names]}
        added["probability"] = [f"{_probability(answers, name):.6g}" for name in names]
        if self.data.version_2_with_negative:
            added["null_odds"] = [f"{answers.null_odds[name]:.6g}" for name in names]
        return predictions_table(asked, Mapped(records.__getitem__, asked), added)

    def write_evaluation(self, folder: Path, split: str) -> None:
        """Write the JSON files, on rank zero; names of a test's, which may follow a validation, end in ``-test``."""
        if self._answers is None:
            return
        end = "-test.json" if split == "test" else ".json"
        write_text(folder / f"predictions{end}", json.dumps(self._answers.predictions, indent=4) + "\n")
        write_text(folder / f"nbest_predictions{end}", json.dumps(self._answers.nbest, indent=4) + "\n")
        if self.data.version_2_with_negative:
            write_text(folder / f"null_odds{end}", json.dumps(self._answers.null_odds, indent=4) + "\n")


def _probability(answers: Answers, name: str) -> float:
    """Probability of the predicted answer among the n best."""
    text = answers.predictions[name]
    return next((float(one["probability"]) for one in answers.nbest[name] if one["text"] == text), 0.0)


def span_losses(start: Tensor, end: Tensor, labels: Tensor) -> Tensor:
    """Mean of the cross-entropies of first and last token.

    Args:
        start: ``[batch, length]``, score of each token to be the first.
        end: ``[batch, length]``, score of each token to be the last.
        labels: ``[batch, 2]``, positions of the first and last token.

    Returns:
        Loss of each input, ``[batch]``.

    """
    first = functional.cross_entropy(start, labels[:, 0], reduction="none")
    last = functional.cross_entropy(end, labels[:, 1], reduction="none")
    return (first + last) / 2
