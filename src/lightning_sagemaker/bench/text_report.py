# SPDX-License-Identifier: Apache-2.0
"""The results of a measurement for a terminal."""

from __future__ import annotations

from lightning_sagemaker.bench import breakdown
from lightning_sagemaker.bench.breakdown import PARTS
from lightning_sagemaker.bench.plan_report import columns
from lightning_sagemaker.bench.results import Results
from lightning_sagemaker.bench.verdicts import verdict_lines


def table(results: Results) -> str:
    """One line for each case, the parts of its step, and conclusions.

    Args:
        results: A measurement.

    """
    rows = [["case", "samples/s", "from", "to", "over the first", "T(N)/(N T(1))"]]
    first = results.cases[0].rate.value
    for one in results.cases:
        rate, efficiency = one.rate, results.efficiency(one)
        figures = [f"{value:.4g}" for value in (rate.value, rate.low, rate.high)]
        share = "" if efficiency is None else f"{efficiency:.3f}"
        rows.append([one.case.name, *figures, f"{rate.value / first:.3f}", share])
    return "\n".join([*columns(rows), "", *_breakdowns(results), *verdict_lines(results)])


def _breakdowns(results: Results) -> list[str]:
    """Milliseconds of a step's parts, the mean over the ranks."""
    rows = [["ms of a step", *PARTS, "all", "without profiler"]]
    for one in results.cases:
        if one.breakdown:
            mean = breakdown.mean(one.breakdown)
            seconds = [*(mean.seconds[part] for part in PARTS), mean.traced_seconds, mean.untraced_seconds]
            rows.append([one.case.name, *(f"{1e3 * value:.1f}" for value in seconds)])
    return [*columns(rows), ""] if len(rows) > 1 else []
