# SPDX-License-Identifier: Apache-2.0
"""The report of a measurement: one self-contained HTML file, readable on a phone and printable."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Sequence
from html import escape

from lightning_sagemaker.bench import breakdown, verdicts
from lightning_sagemaker.bench.bars import stacked
from lightning_sagemaker.bench.breakdown import PARTS, Breakdown
from lightning_sagemaker.bench.cases import Case
from lightning_sagemaker.bench.charts import Line, plot
from lightning_sagemaker.bench.results import Measured, Results
from lightning_sagemaker.bench.stats import Interval
from lightning_sagemaker.bench.verdicts import Pair

_RANKS = 8
"""Maximum number of ranks of a case whose steps are shown."""
_SHOWN = 6
"""Maximum number of cases whose windows are plotted."""
_STYLE = """
:root { color-scheme: light }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1rem; color: #222; background: #fff }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .92rem }
th, td { padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #e4e4e4 }
th { white-space: nowrap } .n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
figure { margin: 1rem 0; break-inside: avoid } figcaption { font-weight: 600 } .unit { font-weight: 400; color: #555 }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem }
svg { width: 100%; height: auto; background: #fcfcfc } svg text { font: 12px system-ui, sans-serif; fill: #444 }
.grid { stroke: #e4e4e4 } .mark { stroke: #999; stroke-dasharray: 3 3 }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .88rem }
.key i { display: inline-block; width: .9em; height: .9em; margin-right: .35em; vertical-align: -.1em;
 print-color-adjust: exact; -webkit-print-color-adjust: exact }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: .6rem; font-size: .85rem }
@media print { body { max-width: none; padding: 0; font-size: 11pt } .wide { overflow: visible } pre { background: none }
 .plots { grid-template-columns: 1fr 1fr } h2 { break-after: avoid } tr { break-inside: avoid } svg { max-height: 7cm } }
"""


def report(results: Results) -> str:
    """The page of a sweep."""
    title = f"{results.kind}: {results.target}"
    conclusions = verdicts.verdict_lines(results)
    parts = [
        f"<h1>{escape(title)}</h1>",
        _list(conclusions),
        f"<h2>Results</h2>{_cases_table(results)}",
        *_step_parts(results),
        f'<div class="plots">{"".join(_plots(results))}</div>',
        f"<h2>Commands</h2><pre>{escape(chr(10).join(one.command for one in results.cases))}</pre>",
        f"<h2>Environment</h2>{_environment(results)}",
        "<h2>How it was measured</h2><p>Each case runs in its own process; cases alternate, round by round. Every case"
        f" trains on {results.samples} samples with {results.threads} threads for each rank. Windows before the steady"
        " state (MSER) are discarded; a rate is the median over the rounds of the median window, and the interval is"
        " where 95% of resampled measurements (rounds, and blocks of windows in them) lie. It does not cover what this"
        " machine does at other times.</p>",
    ]
    return _page(title, parts)


def comparison(first: Results, second: Results, pairs: Sequence[Pair]) -> str:
    """The page of two results side by side."""
    rows = [
        [
            one.name,
            _rate(one.first.value),
            _rate(one.second.value),
            f"{one.ratio.value:.3f}",
            _range(one.ratio),
            one.verdict,
        ]
        for one in pairs
    ]
    head = ["case", "A samples/s", "B samples/s", "B over A", "from - to", "verdict"]
    different = verdicts.differences(first, second)
    parts = [
        "<h1>A against B</h1>",
        f'<div class="wide">{_table(head, rows)}</div>',
        _list([f"Differs: {one}" for one in different]),
        f"<h2>A: {escape(first.target)}</h2>{_cases_table(first)}{_environment(first)}",
        f"<h2>B: {escape(second.target)}</h2>{_cases_table(second)}{_environment(second)}",
    ]
    return _page("A against B", parts)


def _cases_table(results: Results) -> str:
    first = results.cases[0]
    head = [
        "case",
        "samples/s",
        "from - to",
        "over the first",
        "T(N)/(N T(1))",
        "rounds",
        "warm-up",
        "first line s",
        "",
    ]
    rows = []
    for one in results.cases:
        efficiency, rate = results.efficiency(one), one.rate
        rows.append(
            [
                one.case.name,
                _rate(rate.value),
                _range(rate),
                f"{rate.value / first.rate.value:.3f}",
                "" if efficiency is None else f"{efficiency:.3f}",
                str(len(one.rounds)),
                " ".join(f"{each.warm_up}/{len(each.rates)}" for each in one.rounds),
                " ".join(f"{each.seconds_to_first_line:.1f}" for each in one.rounds),
                "" if one.is_steady else "not steady",
            ]
        )
    return f'<div class="wide">{_table(head, rows)}</div>'


def _step_parts(results: Results) -> list[str]:
    """Parts of a step's time: a bar for each case, and for each rank of cases with several."""
    known = [one for one in results.cases if one.breakdown]
    if not known:
        return []
    rows = [[one.case.name, *_parts_cells(breakdown.mean(one.breakdown))] for one in known]
    figures = [stacked("Mean over the ranks", "ms", PARTS, [(row[0], _parts_ms(breakdown.mean(one.breakdown)))
               for row, one in zip(rows, known, strict=True)])]  # fmt: skip
    for one in known[:_SHOWN]:
        if len(one.breakdown) > 1:
            bars = [(f"rank {rank.rank}", _parts_ms(rank)) for rank in one.breakdown[:_RANKS]]
            figures.append(stacked(f"Ranks of {one.case.name}", "ms", PARTS, bars))
    head = ["ms", *PARTS, "all", "without profiler"]
    return [
        f'<h2>A step</h2><div class="wide">{_table(head, rows)}</div><div class="plots">{"".join(figures)}</div>',
        "<p>Recorded by torch's profiler in a separate short run, on every rank. Communication is the part that is not"
        " overlapped with computation, including the wait for slower ranks. Other is the training loop, callbacks and"
        " logging. The profiler itself makes steps slower; the last column is the step time without it.</p>",
    ]


def _parts_ms(one: Breakdown) -> dict[str, float]:
    return {part: 1e3 * seconds for part, seconds in one.seconds.items()}


def _parts_cells(one: Breakdown) -> list[str]:
    return [f"{1e3 * value:.1f}" for value in (*one.seconds.values(), one.traced_seconds, one.untraced_seconds)]


def _plots(results: Results) -> list[str]:
    found = []
    if results.kind == "workers":
        points = sorted(results.cases, key=lambda one: one.case.num_workers or 0)
        line = _measured("measured", points, [one.case.num_workers or 0 for one in points])
        found.append(plot("Throughput by loader processes", "num_workers", "samples/s", [line]))
    else:
        series = _series(results)
        if any(len(points) > 1 for points in series.values()):
            found.append(_scaling_plot(series))
            found += _efficiency_plot(results, series)
    for one in results.cases[:_SHOWN]:
        rounds = [
            Line(f"round {number}", [(float(place), rate) for place, rate in enumerate(each.rates)])
            for number, each in enumerate(one.rounds, 1)
        ]
        mark = float(max(each.warm_up for each in one.rounds)) or None
        found.append(plot(f"Windows of {one.case.name}", "window; dashed: the warm-up ends", "samples/s", rounds, mark))
    return found


def _series(results: Results) -> dict[str, list[Measured]]:
    """Cases that differ in size only."""
    found: dict[str, list[Measured]] = defaultdict(list)
    for one in sorted(results.cases, key=lambda case: case.case.ranks):
        found[_but_size(one.case)].append(one)
    return found


def _but_size(case: Case) -> str:
    parts = [
        case.strategy,
        f"batch {case.batch} x {case.accumulation}",
        case.precision,
        {None: None, True: "compiled", False: "eager"}[case.compile],
        case.network,
    ]
    parts.append(None if case.num_workers is None else f"{case.num_workers} workers")
    return ", ".join(part for part in parts if part)


def _scaling_plot(series: dict[str, list[Measured]]) -> str:
    lines = [_measured(name, points, [one.case.ranks for one in points]) for name, points in series.items()]
    first = next(points for points in series.values() if len(points) > 1)
    base = first[0]
    ideal = [
        (float(one.case.ranks), base.rate.value * one.case.ranks / base.case.ranks) for one in (first[0], first[-1])
    ]
    return plot("Throughput by ranks", "ranks", "samples/s", [*lines, Line("perfect scaling", ideal, dashed=True)])


def _efficiency_plot(results: Results, series: dict[str, list[Measured]]) -> list[str]:
    lines = [
        Line(name, [(float(one.case.ranks), results.efficiency(one) or 1.0) for one in points])
        for name, points in series.items()
    ]
    return [plot("Scaling efficiency", "ranks", "T(N)/(N T(1))", lines)]


def _measured(name: str, points: Sequence[Measured], xs: Sequence[int]) -> Line:
    rates = [one.rate for one in points]
    return Line(
        name,
        [(float(x), rate.value) for x, rate in zip(xs, rates, strict=True)],
        [(rate.low, rate.high) for rate in rates],
    )


def _environment(results: Results) -> str:
    rows = [
        [name, shlex.join(value) if isinstance(value, list) else json.dumps(value).strip('"')]
        for name, value in results.environment.items()
        if value is not None
    ]
    return f'<div class="wide">{_table(["", ""], rows)}</div>'


def _page(title: str, parts: Sequence[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def cell(text: str, tag: str, is_number: bool) -> str:
        return f"<{tag}{' class=n' if is_number else ''}>{escape(text)}</{tag}>"

    numbers = [bool(rows) and all(_is_number(row[place]) for row in rows) for place in range(len(head))]
    top = "".join(cell(text, "th", number) for text, number in zip(head, numbers, strict=True))
    body = "".join(
        f"<tr>{''.join(cell(text, 'td', number) for text, number in zip(row, numbers, strict=True))}</tr>"
        for row in rows
    )
    return f"<table>{f'<tr>{top}</tr>' if any(head) else ''}{body}</table>"


def _is_number(text: str) -> bool:
    return text == "" or text.replace(" ", "").replace("-", "").replace(".", "").replace("/", "").isdigit()


def _list(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(one)}</li>' for one in sentences)}</ul>" if sentences else ""


def _range(found: Interval) -> str:
    return f"{_rate(found.low)} - {_rate(found.high)}"


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}" if value < 100 else f"{value:.1f}"
