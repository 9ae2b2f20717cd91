# SPDX-License-Identifier: Apache-2.0
"""A plan as a plain table, and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from lightning_sagemaker.bench.layouts import GIB, Judged
from lightning_sagemaker.bench.offers import Offer, Question
from lightning_sagemaker.bench.runs import INTERRUPTIONS, SPOT_SHARES
from lightning_sagemaker.bench.scaling import Cluster
from lightning_sagemaker.launch.planning.instances import instance_table_date

Goal = tuple[float | None, float | None, bool]
_WITHOUT_BF16 = ("V100", "T4")
_SHOWN = 8
"""Maximum number of layouts shown for a cluster."""


def offers_table(question: Question, found: Sequence[Offer], best: Offer | None, goal: Goal | None) -> str:
    """One line for each instance type and count, and notes on the sources of the figures."""
    head = ["instance", "hosts", "GPUs", "layout", "samples/s", "from - to", "T(N)/NT(1)", "limit", "hours", "USD"]
    head += ["spot hours", "spot USD"]
    lines = [_describe(question), "", *columns([head, *(_cells(one) for one in found)])]
    if goal is not None:
        lines += ["", _chosen(best, goal)]
    return "\n".join([*lines, "", *_notes(question, found)])


def layouts_table(question: Question, found: Sequence[tuple[Cluster, list[Judged]]]) -> str:
    """The best layouts of each cluster, with their memory and speed."""
    head = ["instance", "hosts", "stages x tensor x replicas", "GiB per GPU", "of", "fits", "samples/s", "step s"]
    rows = [head]
    for cluster, judged in found:
        for one in judged[:_SHOWN]:
            rows.append(
                [
                    cluster.instance.name,
                    str(cluster.hosts),
                    str(one.layout),
                    f"{one.memory / GIB:.1f}",
                    f"{one.room / GIB:.0f}",
                    "yes" if one.fits else "no",
                    _short(one.step.rate),
                    f"{one.step.seconds:.3g}",
                ]
            )
    lines = [_describe(question), "", *columns(rows)]
    for cluster, judged in found:
        if not judged[0].fits:
            least = judged[0]
            ways = ["more hosts"] if question.workload.recompute else ["more hosts", "--recompute"]
            ways += ["a smaller --batch-size"] if question.workload.batch > 1 else []
            lines.append(
                f"On {cluster.hosts} x {cluster.instance.name} nothing fits; the smallest is {least.layout} with"
                f" {least.memory / GIB:.1f} GiB. HINT: {' or '.join(ways)}."
            )
    return "\n".join(lines)


def offers_json(question: Question, found: Sequence[Offer], best: Offer | None) -> str:
    """All offers as JSON, with the workload, constants and prices."""
    workload, constants = question.workload, question.constants
    content = {
        "workload": {
            "model": workload.model.name,
            "parameters": workload.model.parameters,
            "sequence_length": workload.length,
            "batch_size": workload.batch,
            "accumulation": workload.accumulation,
            "precision": workload.precision,
            "samples": workload.samples,
        },
        "constants": {"date": constants.date, "source": constants.source},
        "prices": {"date": question.prices.date, "region": question.prices.region},
        "offers": [_plain(one) for one in found],
        "chosen": None if best is None else _plain(best),
    }
    return json.dumps(content, indent=1)


def layouts_json(found: Sequence[tuple[Cluster, list[Judged]]]) -> str:
    """All layouts of each cluster as JSON."""
    content = [
        {"instance": cluster.instance.name, "hosts": cluster.hosts, **_plain_layout(one)}
        for cluster, judged in found
        for one in judged
    ]
    return json.dumps({"layouts": content}, indent=1)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, with the first column left-aligned and the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) if place == 0 else cell.rjust(width) for place, (cell, width) in enumerate(entry))
        for entry in (list(zip(row, widths, strict=True)) for row in rows)
    ]


def _cells(one: Offer) -> list[str]:
    low, high = one.interval
    hours, cost, spot = one.run, one.cost, one.spot_cost
    rate = "does not fit" if not one.judged.fits else _short(one.rate) + ("*" if one.is_extrapolated else "")
    return [
        one.cluster.instance.name,
        str(one.cluster.hosts),
        str(one.cluster.hosts * one.cluster.instance.gpus),
        str(one.judged.layout),
        rate,
        f"{_short(low)} - {_short(high)}" if one.judged.fits else "",
        "" if one.efficiency is None or not one.judged.fits else f"{one.efficiency:.2f}",
        one.limit if one.judged.fits else "memory",
        "" if hours is None else _short(hours.hours),
        "" if cost is None else _short(cost),
        "" if hours is None else f"{_short(hours.spot_hours[0])} - {_short(hours.spot_hours[2])}",
        "" if spot is None else f"{_short(spot[0])} - {_short(spot[1])}",
    ]


def _describe(question: Question) -> str:
    work = question.workload
    samples = "" if work.samples is None else f", {_short(work.samples)} samples"
    return (
        f"{work.model.name}: {_short(work.model.parameters)} parameters, {work.length} tokens, {work.accumulation} x"
        f" {work.batch} samples per GPU and step, {work.precision}{samples}"
    )


def _chosen(best: Offer | None, goal: Goal) -> str:
    hours, budget, spot = goal
    limits = [f"{hours:g} hours"] if hours is not None else []
    limits += [f"${budget:g}"] if budget is not None else []
    if best is None or best.run is None:
        return f"None of these stays within {' and '.join(limits)}. HINT: other --instances, more --hosts, or --spot."
    word = "The cheapest" if hours is not None else "The fastest"
    costs = best.spot_cost if spot else None
    price = f"${best.cost or 0:.0f}" if costs is None else f"${costs[0]:.0f} to ${costs[1]:.0f}"
    took = best.run.spot_hours[1] if spot else best.run.hours
    return (
        f"{word} within {' and '.join(limits)}: {best.cluster.hosts} x {best.cluster.instance.name}, {best.judged.layout},"
        f" {took:.1f} hours, {price}{' on spot instances' if spot else ''}."
    )


def _notes(question: Question, found: Sequence[Offer]) -> list[str]:
    constants, prices = question.constants, question.prices
    start = "from FLOPs over peak throughput" if question.anchor is None else (
        f"from {question.anchor.rate:g} samples/s on {question.anchor.cluster.hosts} x"
        f" {question.anchor.cluster.instance.name}"
    )  # fmt: skip
    notes = [
        f"Predicted {start}; nine of ten published results are within the interval, which is a factor of"
        f" {1 + constants.anchored_error:.2f} from a measurement on {' or '.join(constants.validated)},"
        f" {1 + constants.unanchored_error:.2f} otherwise. Fitted {constants.date}.",
        f"Prices of {prices.region}, {prices.date}; instances {instance_table_date()}. Spot: {SPOT_SHARES[0]:.0%} to"
        f" {SPOT_SHARES[1]:.0%} of on demand, {INTERRUPTIONS[0]:g} to {INTERRUPTIONS[2]:g} interruptions of a host a day.",
    ]
    if any(one.is_extrapolated for one in found):
        notes.append(
            f"* more than {constants.largest_hosts} hosts, the most of any result that this was compared with."
        )
    old = sorted({one.cluster.instance.gpu for one in found} & set(_WITHOUT_BF16))
    if old and "bf16" in question.workload.precision:
        notes.append(f"{' and '.join(old)} cannot compute in bf16; 16-mixed is assumed there.")
    if question.anchor is None:
        notes.append("HINT: measure one instance and pass --measured TYPE=SAMPLES_PER_SECOND to narrow the interval.")
    return notes


def _plain(one: Offer) -> dict[str, object]:
    step, run = one.judged.step, one.run
    return {
        "instance": one.cluster.instance.name,
        "hosts": one.cluster.hosts,
        **_plain_layout(one.judged),
        "samples_per_second_interval": [_finite(value) for value in one.interval],
        "scaling_efficiency": one.efficiency,
        "limit": one.limit,
        "is_extrapolated": one.is_extrapolated,
        "breakdown_seconds": {
            "compute": step.compute,
            "stragglers": step.straggling,
            "communication": step.communication,
            "exposed_communication": step.exposed,
            "loading": step.feeding,
        },
        "hours": None if run is None else _finite(run.hours),
        "spot_hours": None if run is None else [_finite(value) for value in run.spot_hours],
        "expected_interruptions": None if run is None else _finite(run.interruptions),
        "usd": one.cost,
        "spot_usd": None if one.spot_cost is None else [_finite(value) for value in one.spot_cost],
    }


def _plain_layout(one: Judged) -> dict[str, object]:
    return {
        "strategy": one.layout.strategy,
        "stages": one.layout.stages,
        "tensor": one.layout.tensor,
        "replicas": one.layout.replicas,
        "memory_gib": round(one.memory / GIB, 2),
        "gpu_gib": round(one.room / GIB, 2),
        "fits": one.fits,
        "samples_per_second": one.step.rate,
        "step_seconds": one.step.seconds,
    }


def _finite(value: float) -> float | None:
    """``value``, or None for infinity, which JSON lacks: the hours of a run that interruptions never let finish."""
    return value if math.isfinite(value) else None


def _short(value: float) -> str:
    if not math.isfinite(value):
        return "never"
    for limit, letter in ((1e9, "B"), (1e6, "M"), (1e5, "k")):
        if value >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.3g}{letter}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
