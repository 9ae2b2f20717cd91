# SPDX-License-Identifier: Apache-2.0
"""The model of scaling behind ``lightning-sagemaker plan``, fitted to half of the published results: it predicts the rest.

    python benchmarks/plan_validation.py            # the table, row by row
    python benchmarks/plan_validation.py --fit      # fit anew and say what would change
    python benchmarks/plan_validation.py --write    # and write it to the package's constants.json

The rows and the rule that splits them are in ``published_scaling.json``. Beside each prediction stands that of the "linear"
baseline: throughput per GPU as in the series' anchor (by ratio of peaks on another instance), no gain, perfect efficiency.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lightning_sagemaker.bench.layouts import Layout, judge
from lightning_sagemaker.bench.scaling import (
    Anchor,
    Cluster,
    carried_over,
    compute_seconds,
    predict_step,
    scaling_efficiency,
)
from lightning_sagemaker.bench.tables import Constants, accelerator, constants
from lightning_sagemaker.bench.workload import Model, Workload
from lightning_sagemaker.launch.planning.instances import find_instance

PUBLISHED = Path(__file__).with_name("published_scaling.json")
CONSTANTS = Path(__file__).parents[1] / "src" / "lightning_sagemaker" / "bench" / "data" / "constants.json"
START: dict[str, float] = {
    "matmul_share": 0.5,
    "traffic_bytes": 600.0,
    "launch_seconds": 0.01,
    "network_share": 0.6,
    "latency_seconds": 0.01,
    "smddp_speedup": 2.0,
    "overlap": 0.6,
    "feed_seconds": 6e-5,
    "unhidden_feed": 0.45,
}
"""Before the fit, from what is reported of the parts; the fit stays near them where rows say little."""
PULL = 0.002
"""Weight of that."""


@dataclass(frozen=True)
class Row:
    """One published figure and what is said of it.

    Attributes:
        number: Its place among the rows, from 1.
        facts: As in the file.
        predicted: By the model.
        linear: By the baseline; None where that says nothing.
        is_anchor: Whether its series is predicted from it.
        is_same_instance: Whether it is predicted from a measurement on its own instance type.

    """

    number: int
    facts: Mapping[str, Any]
    predicted: float
    linear: float | None
    is_anchor: bool
    is_same_instance: bool

    @property
    def is_fitted(self) -> bool:
        """Whether it is among the rows that the constants are fitted to."""
        return self.number % 2 == 1

    @property
    def error(self) -> float:
        return self.predicted / float(self.facts["value"]) - 1

    @property
    def linear_error(self) -> float | None:
        return None if self.linear is None else self.linear / float(self.facts["value"]) - 1


def read_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(PUBLISHED.read_text())["rows"]
    return rows


def workload_of(facts: Mapping[str, Any]) -> Workload:
    model = facts["model"]
    return Workload(
        Model.named(model) if isinstance(model, str) else Model.described(**model),
        length=facts["length"],
        batch=facts["batch"],
        accumulation=facts["accumulation"],
        precision=facts["precision"],
        workers=facts.get("workers"),
        reads_all=facts.get("reads_all", False),
        gradient_bytes=facts.get("gradient_bytes", 4),
        overlaps=facts.get("overlaps", True),
        recompute=facts.get("recompute", False),
    )


def cluster_of(facts: Mapping[str, Any]) -> Cluster:
    return Cluster(find_instance(facts["instance"]), facts["hosts"])


def anchors(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, Anchor]]:
    """The first odd row with a throughput of each series."""
    found: dict[str, tuple[int, Anchor]] = {}
    for number, facts in enumerate(rows, 1):
        if number % 2 == 1 and facts["kind"] == "samples/s" and facts["series"] not in found:
            anchor = Anchor(cluster_of(facts), facts["value"], workload_of(facts), facts["strategy"])
            found[facts["series"]] = (number, anchor)
    return found


def predict_all(rows: Sequence[Mapping[str, Any]], fitted: Constants) -> list[Row]:
    known = anchors(rows)
    found = []
    for number, facts in enumerate(rows, 1):
        anchored = known.get(facts.get("anchor", facts["series"]))
        anchor = anchored[1] if anchored else None
        predicted = _predict(facts, anchor, fitted)
        is_anchor = anchored is not None and anchored[0] == number
        is_same = anchor is not None and anchor.cluster.instance.name == facts["instance"]
        found.append(Row(number, facts, predicted, _linear(facts, anchor), is_anchor, is_same))
    return found


def _predict(facts: Mapping[str, Any], anchor: Anchor | None, fitted: Constants) -> float:
    workload, cluster = workload_of(facts), cluster_of(facts)
    if anchor is None:
        micro_batch = compute_seconds(workload, cluster.instance, fitted)
    else:
        micro_batch = carried_over(anchor, workload, cluster.instance, fitted)
    rate = _rate(workload, cluster, facts["strategy"], micro_batch, fitted)
    if facts["kind"] == "ratio":
        other = dict(facts["over"])
        strategy = other.pop("strategy", facts["strategy"])
        return rate / _rate(replace(workload, **other), cluster, strategy, micro_batch, fitted)
    if facts["kind"] == "efficiency":
        return scaling_efficiency(workload, cluster, micro_batch, facts["strategy"], fitted)
    if facts["kind"] == "TFLOPS per GPU":
        operations = workload.model.flops(workload.length) * (4 / 3 if workload.recompute else 1)
        return rate * operations / cluster.ranks / 1e12
    return rate


def _rate(workload: Workload, cluster: Cluster, strategy: str, micro_batch: float, fitted: Constants) -> float:
    if "fsdp" in strategy:
        return judge(workload, cluster, Layout(strategy, replicas=cluster.ranks), micro_batch, fitted).step.rate
    return predict_step(workload, cluster, micro_batch, strategy, fitted).rate


def _linear(facts: Mapping[str, Any], anchor: Anchor | None) -> float | None:
    if facts["kind"] in ("ratio", "efficiency"):
        return 1.0
    if anchor is None:
        return None
    here, there = (accelerator(find_instance(name)) for name in (facts["instance"], anchor.cluster.instance.name))
    if here is None or there is None:
        return None
    length = anchor.workload.length / facts["length"]
    return anchor.rate * cluster_of(facts).ranks / anchor.cluster.ranks * here.half_tflops / there.half_tflops * length


def fit(rows: Sequence[Mapping[str, Any]]) -> Constants:
    """The constants that the odd rows say, by a search along each of them in turn."""
    names = list(START)
    point = [0.0] * len(names)  # logarithms of what START is multiplied by

    def made(at: Sequence[float]) -> Constants:
        return replace(constants(), **{name: START[name] * math.exp(at[place]) for place, name in enumerate(names)})

    def loss(at: Sequence[float]) -> float:
        fitted = made(at)
        errors = [math.log1p(row.error) for row in predict_all(rows, fitted) if row.is_fitted and not row.is_anchor]
        over = max(0.0, fitted.overlap - 1) + max(0.0, fitted.matmul_share - 1) + max(0.0, fitted.unhidden_feed - 1)
        return statistics.fmean(error**2 for error in errors) + PULL * sum(x * x for x in at) + 10 * over

    best, width = loss(point), 0.4
    while width > 0.005:
        improved = False
        for place in range(len(names)):
            for direction in (width, -width):
                tried = [*point]
                tried[place] += direction
                value = loss(tried)
                if value < best - 1e-9:
                    point, best, improved = tried, value, True
        width = width if improved else width / 2
    return made(point)


def errors(rows: Sequence[Row], which: str) -> list[float]:
    """Absolute errors of the predicted half."""
    held_out = [row for row in rows if not row.is_fitted]
    if which == "linear":
        return [abs(row.linear_error) for row in held_out if row.linear_error is not None]
    return [abs(row.error) for row in held_out]


def ninetieth(values: Sequence[float]) -> float:
    """The value that nine of ten do not exceed."""
    return sorted(values)[min(len(values) - 1, math.ceil(0.9 * len(values)) - 1)]


def show(rows: Sequence[Row]) -> None:
    head = f"{'row':>3}  {'series':<34} {'instance':<18} {'hosts':>5}  {'kind':<14}"
    print(f"{head} {'published':>9} {'predicted':>9} {'error':>7} {'linear':>7}  half")
    for row in rows:
        facts = row.facts
        half = "anchor" if row.is_anchor else "fitted" if row.is_fitted else "predicted"
        linear = "" if row.linear_error is None else f"{row.linear_error:+.1%}"
        print(
            f"{row.number:>3}  {facts['series']:<34} {facts['instance']:<18} {facts['hosts']:>5}  {facts['kind']:<14}"
            f" {facts['value']:>9.4g} {row.predicted:>9.4g} {row.error:>+7.1%} {linear:>7}  {half}"
        )
    held_out = [row for row in rows if not row.is_fitted]
    worst = max(held_out, key=lambda row: abs(row.error))
    for name, some in (
        ("all", held_out),
        ("throughputs only", [r for r in held_out if r.facts["kind"] == "samples/s"]),
    ):
        for which in ("model", "linear"):
            found = errors(some, which)
            print(
                f"{name}, {which}: median error {statistics.median(found):.1%}, 90th percentile {ninetieth(found):.1%},"
                f" worst {max(found):.1%}, of {len(found)} predicted rows"
            )
    for name, is_same in (("from a measurement on the same instance type", True), ("without one", False)):
        some = [abs(row.error) for row in held_out if row.is_same_instance is is_same]
        print(
            f"{name}: median {statistics.median(some):.1%}, 90th percentile {ninetieth(some):.1%}, of {len(some)} rows"
        )
    print(f"worst row: {worst.number}, {worst.facts['series']}, {worst.facts['hosts']} hosts, {worst.error:+.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="fit the constants anew")
    parser.add_argument("--write", action="store_true", help="and write them into the package")
    given = parser.parse_args()
    rows, fitted = read_rows(), constants()
    if given.fit or given.write:
        fitted = fit(rows)
    found = predict_all(rows, fitted)
    show(found)
    print("constants:", ", ".join(f"{name} {getattr(fitted, name):.4g}" for name in START))
    if given.write:
        held_out = [row for row in found if not row.is_fitted]
        content = asdict(fitted) | {
            "date": json.loads(PUBLISHED.read_text())["date"],
            "source": "odd rows of benchmarks/published_scaling.json, by benchmarks/plan_validation.py --write",
            "anchored_error": round(ninetieth([abs(row.error) for row in held_out if row.is_same_instance]), 3),
            "unanchored_error": round(ninetieth([abs(row.error) for row in held_out if not row.is_same_instance]), 3),
            "largest_hosts": max(row.facts["hosts"] for row in held_out if row.is_same_instance),
            "validated": sorted({row.facts["instance"] for row in held_out if row.is_same_instance}),
        }
        rounded = {name: float(f"{value:.4g}") if name in START else value for name, value in content.items()}
        CONSTANTS.write_text(json.dumps(rounded, indent=1) + "\n")


if __name__ == "__main__":
    main()
