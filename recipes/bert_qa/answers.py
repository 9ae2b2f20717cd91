# SPDX-License-Identifier: Apache-2.0
"""Chooses the most likely answers of each question from the scores of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

Array = npt.NDArray[Any]


def best_spans(start: Tensor, end: Tensor, inside: Tensor, count: int, max_length: int) -> dict[str, Tensor]:
    """The spans with the highest sum of scores in each window, among all that are not too long.

    Exhaustive: not only combinations of the best starts with the best ends, as the official tools try.

    Args:
        start: ``[windows, length]``, score of each token to be the first of the answer.
        end: ``[windows, length]``, score of each token to be the last.
        inside: ``[windows, length]``, whether a token is in the context.
        count: Number of spans for each window.
        max_length: Maximum tokens of an answer.

    Returns:
        ``start``, ``end``: ``[windows, count]``, positions in the input, -1 if there are fewer spans;
        ``start_logit``, ``end_logit``: their scores; ``null``: ``[windows]``, score of no answer.

    """
    length = start.shape[1]
    nothing = float("-inf")
    null = start[:, 0] + end[:, 0]
    starts = start.masked_fill(~inside, nothing)
    ends = functional.pad(end.masked_fill(~inside, nothing), (0, max_length - 1), value=nothing)
    scores = (starts[:, :, None] + ends.unfold(1, max_length, 1)).flatten(1)
    best, place = scores.topk(min(count, scores.shape[1]), dim=1)
    first = place // max_length
    last = first + place % max_length
    missing = best == nothing
    last = last.clamp(max=length - 1)
    result = {
        "start": first.masked_fill(missing, -1),
        "end": last.masked_fill(missing, -1),
        "start_logit": start.gather(1, first),
        "end_logit": end.gather(1, last),
    }
    lacking = count - best.shape[1]
    padded = {name: functional.pad(values, (0, lacking), value=-1) for name, values in result.items()}
    return {**padded, "null": null}


@dataclass(frozen=True)
class Candidates:
    """Possible answers of all questions, the best of each first.

    Args:
        question: ``[candidates]``, number of the question, ascending.
        first: ``[candidates]``, first token in the context.
        last: ``[candidates]``, last token.
        start_logit: ``[candidates]``, score of the first token.
        end_logit: ``[candidates]``, score of the last.

    """

    question: Array
    first: Array
    last: Array
    start_logit: Array
    end_logit: Array

    @property
    def score(self) -> Array:
        """Sum of both scores, ``[candidates]``."""
        score: Array = self.start_logit + self.end_logit
        return score


def merge_windows(question: Array, columns: Mapping[str, Array], shift: Array, count: int) -> Candidates:
    """The best spans of each question over its windows; a span that is in several windows counts once.

    Args:
        question: ``[windows]``, number of the question.
        columns: Output of :func:`best_spans`: ``[windows, spans]``.
        shift: ``[windows]``, added to a position in the input to get that in the context.
        count: Maximum number of spans for each question.

    """
    spans = columns["start"].shape[1]
    valid = columns["start"].ravel() >= 0
    owner = np.repeat(question, spans)[valid]
    moved = np.repeat(shift, spans)[valid]
    first, last = columns["start"].ravel()[valid] + moved, columns["end"].ravel()[valid] + moved
    start_logit = columns["start_logit"].ravel()[valid].astype(np.float64)
    end_logit = columns["end_logit"].ravel()[valid].astype(np.float64)
    # Ties go to the earlier and then to the shorter span, so the order never depends on batches or processes.
    order = np.lexsort((last, first, -(start_logit + end_logit), owner))
    keys = np.stack([owner[order], first[order], last[order]], axis=1)
    _, earliest = np.unique(keys, axis=0, return_index=True)
    order = order[np.sort(earliest)]
    position = np.arange(len(order)) - np.searchsorted(owner[order], owner[order], side="left")
    order = order[position < count]
    return Candidates(owner[order], first[order], last[order], start_logit[order], end_logit[order])


@dataclass(frozen=True)
class Answers:
    """The predicted answers.

    Args:
        predictions: Id -> answer; empty: no answer.
        best: Id -> the most likely answer that is not empty.
        nbest: Id -> answers with probability and scores, the best first.
        null_odds: Id -> score of no answer minus that of the best answer.

    """

    predictions: dict[str, str]
    best: dict[str, str]
    nbest: dict[str, list[dict[str, Any]]]
    null_odds: dict[str, float]


def choose_answers(
    ids: Sequence[str],
    texts: Sequence[str],
    candidates: Candidates,
    null: Array,
    threshold: float | None,
) -> Answers:
    """Choose one answer for each question.

    Args:
        ids: Identifiers of the questions.
        texts: Texts of the candidates.
        candidates: Candidates of all questions.
        null: ``[questions]``, lowest score of no answer over the windows of each question.
        threshold: Null odds above which no answer is predicted; ``None``: always an answer.

    """
    predictions, best, nbest, odds = {}, {}, {}, {}
    bounds = np.searchsorted(candidates.question, np.arange(len(ids) + 1))
    score = candidates.score
    for number, name in enumerate(ids):
        part = range(int(bounds[number]), int(bounds[number + 1]))
        entries = [
            {
                "text": texts[i],
                "start_logit": float(candidates.start_logit[i]),
                "end_logit": float(candidates.end_logit[i]),
            }
            for i in part
        ]
        top = float(score[part[0]]) if part else float("-inf")
        best[name] = texts[part[0]] if part else ""
        odds[name] = float(null[number]) - top if part else float("inf")
        predictions[name] = "" if threshold is not None and odds[name] > threshold else best[name]
        if threshold is not None or not part:
            entries.append({"text": "", "start_logit": float(null[number]), "end_logit": 0.0})
        nbest[name] = _with_probabilities(entries)
    return Answers(predictions, best, nbest, odds)


def _with_probabilities(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    entries = sorted(entries, key=lambda entry: -(entry["start_logit"] + entry["end_logit"]))
    scores = torch.tensor([entry["start_logit"] + entry["end_logit"] for entry in entries], dtype=torch.float64)
    chances = scores.softmax(dim=0).tolist()
    return [
        {"text": entry["text"], "probability": chance, **{key: entry[key] for key in ("start_logit", "end_logit")}}
        for entry, chance in zip(entries, chances, strict=True)
    ]
