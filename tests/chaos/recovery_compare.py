# SPDX-License-Identifier: Apache-2.0
"""Whether a job that recovered in itself trained as one that was left alone."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

_ROUNDING = 2e-6
"""Of losses and weights of about one, where a sum has another order."""


class _Setting(Protocol):
    @property
    def ranks(self) -> int: ...
    @property
    def shard(self) -> int: ...


def compare(reference: Path, folder: Path, setting: _Setting, faults: int) -> list[str]:
    """What differs between two jobs.

    Rank zero may die between a step and what it notes of it, so with each of the faults the notes of one step may be lost,
    and those of a validation after it.
    """
    tolerance = 0.0 if setting.ranks == 2 else _ROUNDING
    problems = [*_differing_steps(reference, folder, tolerance, faults), *_differing_ends(reference, folder, tolerance)]
    logged, wanted = _logged(folder), _logged(reference)
    if logged - wanted or len({step for _, step in wanted - logged}) > faults:
        problems.append(f"logged steps differ: {sorted(wanted ^ logged)[:5]}")
    torn = [step for (step, _), sums in _checksums(folder, setting.shard or 1).items() if len(sums) > 1]
    if torn:
        problems.append(f"ranks had other weights in steps {torn[:5]}")
    return problems


def _differing_steps(reference: Path, folder: Path, tolerance: float, faults: int) -> Iterator[str]:
    expected, found = _trained(reference), _trained(folder)
    if expected.keys() != found.keys():
        yield f"samples differ: {sorted(expected.keys() ^ found.keys())[:2]}"
    worst = max(abs(loss - other) for key, (loss,) in expected.items() for other in found.get(key, ()))
    if worst > tolerance:
        yield f"losses differ by {worst:g}"
    noted, wanted = ({row[1] for row in rows(at / "steps.jsonl") if row[0] == "step"} for at in (folder, reference))
    if noted - wanted or len(wanted - noted) > faults:
        yield f"steps {sorted(wanted ^ noted)[:3]} are missing"
    alone, struck = (
        {row[1]: row[2:] for row in rows(at / "steps.jsonl") if row[0] == "validation"} for at in (reference, folder)
    )
    lost = {row["step"] for row in rows(folder / "recovery.jsonl") if row["event"] == "lost"}
    if struck.keys() - alone.keys() or alone.keys() - struck.keys() - lost:
        yield f"validations after steps {sorted(alone.keys() ^ struck.keys())} are missing"
    worst = max(
        abs(a - b) for step in alone.keys() & struck.keys() for a, b in zip(alone[step], struck[step], strict=True)
    )
    if worst > _ROUNDING:
        rows_of = [(step, alone[step], struck[step]) for step in alone if alone[step] != struck.get(step)]
        yield f"validations differ by {worst:g}: {rows_of[:2]}"


def _differing_ends(reference: Path, folder: Path, tolerance: float) -> Iterator[str]:
    wanted = torch.load(reference / "weights-0.pt")
    for path in folder.glob("weights-*.pt"):
        found = torch.load(path)
        worst = max((found[name] - value).abs().max().item() for name, value in wanted.items())
        if worst > tolerance:
            yield f"{path.name} differs by {worst:g}"
    ends = [json.loads(path.read_text()) for at in (reference, folder) for path in sorted(at.glob("best-*.json"))]
    if any(end[0] != ends[0][0] or abs(end[1] - ends[0][1]) > _ROUNDING for end in ends):
        yield f"best checkpoints differ: {ends}"


def _trained(folder: Path) -> dict[tuple[Any, ...], set[float]]:
    """Epoch, batch, samples and random numbers of a shard -> losses of its tries."""
    found: dict[tuple[Any, ...], set[float]] = defaultdict(set)
    for path in folder.glob("rank-*.jsonl"):
        for row in rows(path):
            found[row["epoch"], row["batch"], tuple(row["samples"]), tuple(row["random"])].add(row["loss"])
    return found


def _logged(folder: Path) -> set[tuple[str, str]]:
    """Names and steps of what the CSV logger has written."""
    found = set()
    for path in folder.glob("lightning_logs/*/metrics.csv"):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                found |= {(name, row["step"]) for name, value in row.items() if value and name not in ("step", "epoch")}
    return found


def _checksums(folder: Path, shards: int) -> dict[tuple[int, int], set[int]]:
    """Of each step, and of the ranks that have the same shards."""
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    for path in folder.glob("rank-*.jsonl"):
        for row in rows(path):
            found[row["step"], int(path.stem.partition("-")[2]) % shards].add(row["weights"])
    return found


def rows(path: Path) -> Iterator[Any]:
    """The lines of a file; a process that is killed may leave half of one."""
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue
