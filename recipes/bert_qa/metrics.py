# SPDX-License-Identifier: Apache-2.0
"""Exact match and F1 as SQuAD 2.0's official evaluation computes them (Rajpurkar et al., 2018; evaluate-v2.0.py)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)

Floats = npt.NDArray[np.float64]


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation, English articles and superfluous space."""
    plain = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def exact_score(gold: str, predicted: str) -> float:
    """1 if both are the same after normalization, else 0."""
    return float(normalize_answer(gold) == normalize_answer(predicted))


def f1_score(gold: str, predicted: str) -> float:
    """Harmonic mean of precision and recall over words; if an answer has no words, 1 if both have none, else 0."""
    gold_words, words = normalize_answer(gold).split(), normalize_answer(predicted).split()
    if not gold_words or not words:
        return float(gold_words == words)
    common = sum((Counter(gold_words) & Counter(words)).values())
    if not common:
        return 0.0
    precision, recall = common / len(words), common / len(gold_words)
    return 2 * precision * recall / (precision + recall)


def evaluate(
    answers: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """The metrics of the official evaluation, in percent.

    Args:
        answers: Id -> right answers; none: there is no answer.
        predictions: Id -> predicted answer; empty: none. Questions without a prediction are not counted.
        null_odds: Id -> score of no answer minus that of the best answer. Default: 0 for all, without best thresholds.
        threshold: Odds above which "no answer" counts as predicted.

    Returns:
        ``exact``, ``f1``, ``total``; the same with ``HasAns_`` and ``NoAns_`` over the questions with and without an
        answer, if there are any; and with ``null_odds`` ``best_exact``, ``best_exact_thresh``, ``best_f1`` and
        ``best_f1_thresh``.

    """
    ids = [name for name in answers if name in predictions]
    if not ids:
        return {"exact": 0.0, "f1": 0.0, "total": 0.0}
    # An answer that is nothing but articles and punctuation does not count as one, but the question has an answer.
    golds = {name: [text for text in answers[name] if normalize_answer(text)] or [""] for name in ids}
    has_answer = np.array([bool(answers[name]) for name in ids])
    exact = np.array([max(exact_score(gold, predictions[name]) for gold in golds[name]) for name in ids])
    f1 = np.array([max(f1_score(gold, predictions[name]) for gold in golds[name]) for name in ids])
    odds = np.array([0.0 if null_odds is None else null_odds[name] for name in ids])
    said_none = odds > threshold
    counted = {"exact": np.where(said_none, ~has_answer, exact), "f1": np.where(said_none, ~has_answer, f1)}
    result = _means(counted, np.ones(len(ids), dtype=bool), "")
    for prefix, group in (("HasAns_", has_answer), ("NoAns_", ~has_answer)):
        if group.any():
            result |= _means(counted, group, prefix)
    if null_odds is not None:
        empty = np.array([not predictions[name] for name in ids])
        place = {name: number for number, name in enumerate(ids)}
        # Equal odds stay in the order of the mapping, as in the official evaluation.
        order = np.array([place[name] for name in sorted(null_odds, key=null_odds.__getitem__) if name in place])
        for name, scores in (("exact", exact), ("f1", f1)):
            gains = np.where(has_answer, scores, np.where(empty, 0.0, -1.0))
            best, at = _best_threshold(gains[order], odds[order], int((~has_answer).sum()))
            result |= {f"best_{name}": best, f"best_{name}_thresh": at}
    return result


def _means(scores: Mapping[str, Floats], group: npt.NDArray[np.bool_], prefix: str) -> dict[str, float]:
    # Summed in order and divided last, as the official evaluation does: equal to the last digit.
    count = int(group.sum())
    means = {f"{prefix}{name}": 100.0 * sum(values[group].tolist()) / count for name, values in scores.items()}
    return {**means, f"{prefix}total": float(count)}


def _best_threshold(gains: Floats, odds: Floats, num_without: int) -> tuple[float, float]:
    """The highest score over all thresholds, in percent, and the lowest threshold that gives it.

    Starting with "no answer" for all, predictions are restored in the order of the questions' odds: a question with an
    answer adds its score; one without subtracts 1, unless its prediction is empty anyway.

    Args:
        gains: What each question's prediction adds, ascending by odds.
        odds: Odds of the same questions.
        num_without: Questions without an answer.

    """
    # Added one after the other, as by the official evaluation: equal to the last digit.
    course = np.cumsum(np.concatenate([[float(num_without)], gains]))
    best = int(np.argmax(course))
    return 100.0 * float(course[best]) / len(gains), 0.0 if best == 0 else float(odds[best - 1])
