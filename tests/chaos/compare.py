# SPDX-License-Identifier: Apache-2.0
"""What a run that was interrupted has done otherwise than one that was left alone, by what recorder.py wrote of both."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.recorder import STATES

_ASIDE = ("setup", "start", "strike", "sanity")
"""Lines that are of a start, not of the training."""
_MOST = 40
"""Differences of one rank that are told; the first say what is wrong."""


def lines_of(folder: Path, rank: int) -> list[dict[str, Any]]:
    """What a rank has written; a line that was cut short is none."""
    path = Path(folder) / f"rank-{rank}.jsonl"
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def compare(reference: Path, folder: Path, ranks: int, whole: bool = True) -> list[str]:
    """Differences, one sentence each; none if every start did a piece of the reference, and all of them the whole.

    Each start must go through the reference's lines without a gap, from where the starts before it have come or earlier:
    what was lost with a process is done again, to the same bits.

    Args:
        reference: Folder of the run that was left alone.
        folder: Of the one that was interrupted.
        ranks: Of both.
        whole: False: the clock ends both, so only as much as both have done is compared.

    """
    found = []
    for rank in range(ranks):
        expected, made = training(lines_of(reference, rank)), starts(lines_of(folder, rank))
        if not whole:
            expected = _until_last_batch(expected)
            made = [*made[:-1], _until_last_batch(made[-1])] if made else made
        differences = _compare_rank(expected, made, whole)
        found += [f"rank {rank}, {difference}" for difference in differences[:_MOST]]
        if len(differences) > _MOST:
            found.append(f"rank {rank}, and {len(differences) - _MOST} more")
        found += _compare_sanity(rank, lines_of(reference, rank), lines_of(folder, rank))
    return found


def starts(lines: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The training's lines of each start."""
    found: list[list[dict[str, Any]]] = []
    number = -1
    for line in lines:
        if line["kind"] == "setup" and line["start"] != number:
            number = int(line["start"])
            found += [[] for _ in range(number + 1 - len(found))]
        elif line["kind"] not in _ASIDE:
            found[-1].append(line)
    return found


def training(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what is of a start."""
    return [line for line in lines if line["kind"] not in _ASIDE]


def place(line: dict[str, Any]) -> tuple[Any, ...]:
    """Where in a training a line belongs."""
    return (line["kind"], *(line[name] for name in ("epoch", "batch") if name in line and line["kind"] != "end"))


def words(line: dict[str, Any]) -> str:
    """For a person."""
    kind, *numbers = place(line)
    return " ".join([kind, *(f"{name} {number}" for name, number in zip(("epoch", "batch"), numbers, strict=False))])


def _compare_rank(expected: list[dict[str, Any]], made: list[list[dict[str, Any]]], whole: bool) -> list[str]:
    where = {place(line): number for number, line in enumerate(expected)}
    if not expected:
        return ["the reference has no lines"]
    if len(where) != len(expected):
        return ["the reference has two lines of one place"]
    found, furthest = [], -1
    for number, lines in enumerate(made):
        last: int | None = None
        for line in lines:
            if place(line) not in where:
                if line["kind"] == "end" and not whole:
                    continue  # by the clock, after another number of steps
                if whole or furthest < len(expected) - 1:
                    found.append(f"start {number}: {words(line)} is not in the reference")
                continue
            at = where[place(line)]
            reached = furthest if last is None else last
            if at > reached + 1:
                found.append(f"start {number}: {_missing(expected[reached + 1 : at])} missing before {words(line)}")
            elif last is not None and at <= last:
                found.append(f"start {number}: {words(line)} comes again after {words(expected[last])}")
            found += [f"start {number}: {words(line)}: {one}" for one in _fields(expected[at], line)]
            last, furthest = at, max(furthest, at)
    if whole and furthest < len(expected) - 1:
        found.append(f"{_missing(expected[furthest + 1 :])} missing at the end")
    return found


def _missing(lines: Sequence[dict[str, Any]]) -> str:
    named = ", ".join(words(line) for line in lines[:3])
    return named if len(lines) <= 3 else f"{named} and {len(lines) - 3} more"


def _fields(expected: dict[str, Any], line: dict[str, Any]) -> list[str]:
    """Names with both values; of dictionaries, only of the keys that differ."""
    found = []
    for name in sorted((expected.keys() | line.keys()) - {"time"}):
        one, other = expected.get(name), line.get(name)
        if one == other or (name in STATES and None in (one, other)):  # there are none where no step was made
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            found += [f"{name}: {inner}" for inner in _fields(one, other)]
        else:
            found.append(f"{name} is {_short(other)} instead of {_short(one)}")
    return found


def _short(value: Any) -> str:
    if isinstance(value, str) and value.lstrip("-").startswith("0x"):
        value = float.fromhex(value)
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _until_last_batch(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What follows the last batch is of the moment at which the clock ended the run."""
    last = max((number for number, line in enumerate(lines) if line["kind"] == "batch"), default=-1)
    return lines[: last + 1]


def _compare_sanity(rank: int, reference: Iterable[dict[str, Any]], lines: Iterable[dict[str, Any]]) -> list[str]:
    """A start that goes on need not check again; if it does, by the same samples."""
    expected = [line["ids"] for line in reference if line["kind"] == "sanity"]
    made = [line["ids"] for line in lines if line["kind"] == "sanity"]
    return [f"rank {rank}, sanity check: ids differ" for ids in made if ids not in expected]


def compare_samples(
    reference: Path, folder: Path, padding: int = 0, dropped: int = 0, same_end: bool = True
) -> list[str]:
    """As :func:`compare`, for starts of different sizes: each sample once in an epoch, over all ranks and starts.

    Args:
        reference: Folder of the run that was left alone.
        folder: Of the one that was interrupted, and went on with another number of ranks or batches in a step.
        padding: Samples of an epoch that may come twice, as ranks have the same number of them.
        dropped: Those that may be left out, as they do not fill a batch.
        same_end: Whether both end at the same step; a run that is stopped by a validation has it at another place.

    """
    expected, made = _by_epoch(reference), _by_epoch(folder)
    ends = [{line["step"] for line in lines_of(one, 0) if line["kind"] == "end"} for one in (reference, folder)]
    found = [] if ends[0] == ends[1] or not same_end else [f"ended at step {ends[1]} instead of {ends[0]}"]
    everything = set().union(*expected.values())
    for epoch in sorted(expected.keys() | made.keys()):
        one, other = expected.get(epoch, Counter()), made.get(epoch, Counter())
        again = sum((other - Counter(set(other))).values())
        if again > padding:
            samples = [sample for sample, count in other.items() if count > 1]
            found.append(f"epoch {epoch}: {again} samples come again: {_short(sorted(samples))}")
        if same_end and abs(one.total() - other.total()) > padding + dropped:
            found.append(f"epoch {epoch}: {other.total()} samples instead of {one.total()}")
        if other.total() >= len(everything) - dropped and len(everything - set(other)) > dropped:
            found.append(f"epoch {epoch}: never seen: {_short(sorted(everything - set(other)))}")
    return found


def _by_epoch(folder: Path) -> dict[int, Counter[Any]]:
    """How often each sample came, without steps that were lost with a process and done again."""
    everything = [
        line | {"start": start} for rank in _ranks(folder) for start, line in _numbered(lines_of(folder, rank))
    ]
    resumed = {line["start"]: line["step"] for line in everything if line["kind"] == "start"}
    found: dict[int, Counter[Any]] = {}
    for line in everything:
        if line["kind"] == "batch" and not any(
            start > line["start"] and line["before"] >= step for start, step in resumed.items()
        ):
            found.setdefault(line["epoch"], Counter()).update(line["ids"])
    return found


def _ranks(folder: Path) -> list[int]:
    return [int(path.stem.split("-")[1]) for path in Path(folder).glob("rank-*.jsonl")]


def _numbered(lines: Iterable[dict[str, Any]]) -> Iterable[tuple[int, dict[str, Any]]]:
    start = -1
    for line in lines:
        start = line.get("start", start)
        yield start, line
