# SPDX-License-Identifier: Apache-2.0
"""The tasks of the GLUE benchmark (Wang et al., 2018) by name."""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "nyu-mll/glue"
"""Name of the dataset on the Hugging Face hub."""


@dataclass(frozen=True)
class GlueTask:
    """A task of the benchmark.

    Args:
        columns: Names of the columns with the one or two texts.
        metrics: Metrics that the benchmark reports.
        regression: Whether labels are scores.
        splits: Pairs of a split here and in the dataset.

    """

    columns: tuple[str, ...]
    metrics: tuple[str, ...] = ("accuracy",)
    regression: bool = False
    splits: tuple[tuple[str, str], ...] = (("train", "train"), ("val", "validation"), ("predict", "test"))


_PAIR = ("sentence1", "sentence2")
_MNLI = (
    ("train", "train"),
    ("val", "validation_matched"),
    ("val_mm", "validation_mismatched"),
    ("predict", "test_matched"),
    ("predict_mm", "test_mismatched"),
)

TASKS = {
    "cola": GlueTask(("sentence",), ("matthews_correlation",)),
    "mnli": GlueTask(("premise", "hypothesis"), splits=_MNLI),
    "mrpc": GlueTask(_PAIR, ("accuracy", "f1")),
    "qnli": GlueTask(("question", "sentence")),
    "qqp": GlueTask(("question1", "question2"), ("accuracy", "f1")),
    "rte": GlueTask(_PAIR),
    "sst2": GlueTask(("sentence",)),
    "stsb": GlueTask(_PAIR, ("pearson", "spearman"), regression=True),
    "wnli": GlueTask(_PAIR),
}
