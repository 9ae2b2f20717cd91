# SPDX-License-Identifier: Apache-2.0
"""The data report: a few lines for the terminal, and a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from html import escape
from typing import Any

_FEW = 8
"""Maximum number of classes listed on the terminal."""
_NEAR = 0.8
"""Similarity of names, one of which may be misspelled."""
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em; color: #222 }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em }
table { border-collapse: collapse } td, th { padding: .15em .8em .15em 0; text-align: left; vertical-align: top }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
.bar { background: #4878a8; display: inline-block; height: .8em; min-width: 1px }
.notes li { margin: .4em 0 } .warn { color: #a33 } .fine { color: #363 }
svg { max-width: 100%; background: #fafafa } .cut { stroke: #a33; stroke-dasharray: 4 3 }
.label { fill: #555; font-size: 12px }
"""


def findings(report: Mapping[str, Any]) -> list[str]:
    """A line about each possible problem of the data."""
    found = []
    for name, count in report["cleaned"].items():
        what = (
            "records without text or label, dropped" if name == "drop_empty" else f"labels changed by data.clean {name}"
        )
        found += [f"{what}: {count}"] if count else []
    for split, counts in report["splits"].items():
        for name, what in (("empty", "empty texts"), ("duplicates", "duplicate texts")):
            found += [f"{split}: {what}: {counts[name]}"] if counts[name] else []
    for overlap in report["overlaps"]:
        rows = report["splits"][overlap["split"]]["rows"]
        found.append(
            f"{overlap['split']}: {overlap['count']} of {rows} texts are also in the training data: its scores are too high"
        )
    if report["conflicts"]["count"]:
        example = report["conflicts"]["examples"][0]
        found.append(
            f"texts with different labels: {report['conflicts']['count']}, such as {example['text']!r}:"
            f" {', '.join(example['labels'])}"
        )
    found += [f"{split}: records without a class: {count}" for split, count in report["unlabeled"].items() if count]
    found += [
        f"the {'second' if place else 'first'} text is another name of the class: a model learns nothing else from it"
        for place in report["telling"]
    ]
    for split, lengths in report["lengths"].items():
        rows = report["splits"][split]["rows"]
        if lengths["cut"]:
            found.append(
                f"{split}: {lengths['cut']} of {rows} texts ({lengths['cut'] / rows:.1%}) are longer than"
                f" data.max_length={report['max_length']} and cut"
            )
    trained = report["classes"].get("train", {})
    if not report["regression"]:
        found += _misspelled(trained)
    for split, classes in report["classes"].items():
        absent = [name for name in trained if name not in classes]
        if absent and not report["regression"]:
            found.append(f"{split}: classes without a sample: {len(absent)}, such as {absent[0]!r}")
    return found


def _misspelled(classes: Mapping[str, int]) -> list[str]:
    """A line about classes of one text in training, and which of them resembles another: it may be misspelled."""
    single = [name for name, count in classes.items() if count == 1]
    several = [name for name, count in classes.items() if count > 1]
    if not single or not several:
        return []
    near = ((name, get_close_matches(name, several, 1, _NEAR)) for name in single[:_FEW])
    like = next((f", such as {name!r}, which resembles {match[0]!r}" for name, match in near if match), "")
    return [f"train: classes with one text: {len(single)}{like or f', such as {single[0]!r}'}"]


def terminal_lines(report: Mapping[str, Any]) -> list[str]:
    """The report in a few lines."""
    rows = ", ".join(f"{split} {counts['rows']}" for split, counts in report["splits"].items())
    lines = [f"data: {rows}"]
    classes = report["classes"].get("train", {})
    if report["regression"]:
        lines.append("  labels are scores")
    elif classes:
        named = [f"{name} {count}" for name, count in list(classes.items())[:_FEW]]
        rest = f", ... {list(classes)[-1]} {list(classes.values())[-1]}" if len(classes) > _FEW else ""
        lines.append(f"  {len(classes)} classes in training: {', '.join(named)}{rest}")
    for split, lengths in report["lengths"].items():
        if split == "train":
            lines.append(
                f"  tokens per training text: median {lengths['median']}, 99% at most {lengths['p99']}, longest"
                f" {lengths['longest']}; data.max_length={report['max_length']}"
            )
    return [*lines, *(f"  {finding}" for finding in findings(report))]


def html_page(title: str, report: Mapping[str, Any]) -> str:
    """The report as one HTML file that loads nothing else.

    Args:
        title: Title of the page.
        report: Report of the data.

    """
    found = findings(report)
    notes = (
        "".join(f"<li class=warn>{escape(finding)}</li>" for finding in found)
        or "<li class=fine>nothing unusual found</li>"
    )
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<h2>To look at</h2><ul class=notes>{notes}</ul>",
        f"<h2>Files</h2><ul>{''.join(f'<li>{escape(line)}</li>' for line in report['read'])}</ul>"
        if report["read"]
        else "",
        _rows_table(report),
        "" if report["regression"] else _classes_table(report["classes"]),
        *(_histogram(split, lengths, report["max_length"]) for split, lengths in report["lengths"].items()),
        _examples(report),
        _scripts_table(report["scripts"]),
    ]
    return page(title, parts)


def page(title: str, parts: Sequence[str], style: str = "", script: str = "") -> str:
    """A self-contained HTML page.

    Args:
        title: Title of the page.
        parts: Parts of its body, as HTML.
        style: CSS in addition to that of all reports.
        script: JavaScript to run in the page.

    """
    code = f"<script>{script}</script>" if script else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{_STYLE}{style}</style></head><body>{''.join(parts)}{code}</body></html>\n"
    )


def _rows_table(report: Mapping[str, Any]) -> str:
    header = ["split", "rows", "empty texts", "duplicates", "longer than max_length"]
    rows = [
        [split, counts["rows"], counts["empty"], counts["duplicates"], report["lengths"].get(split, {}).get("cut", "")]
        for split, counts in report["splits"].items()
    ]
    return f"<h2>Rows</h2>{table(header, rows)}"


def _classes_table(classes: Mapping[str, Mapping[str, int]]) -> str:
    if not classes:
        return ""
    names = list(dict.fromkeys(name for counts in classes.values() for name in counts))
    top = max(count for counts in classes.values() for count in counts.values())
    lead = next(iter(classes.values()))
    body = "".join(
        f"<tr><td>{escape(name)}</td>"
        + "".join(f"<td class=number>{counts.get(name, 0)}</td>" for counts in classes.values())
        + f'<td><span class=bar style="width:{20 * lead.get(name, 0) / top:.2f}em"></span></td></tr>'
        for name in names
    )
    head = "".join(f"<th class=number>{escape(split)}</th>" for split in classes)
    return f"<h2>{len(names)} classes</h2><table><tr><th>class</th>{head}<th></th></tr>{body}</table>"


def _histogram(split: str, lengths: Mapping[str, Any], max_length: int) -> str:
    counts, edges = lengths["histogram"]["counts"], lengths["histogram"]["edges"]
    width, height, top = 640, 150, max(1, *counts)
    scale = width / edges[-1]
    bars = "".join(
        f'<rect x="{left * scale:.1f}" y="{height * (1 - count / top):.1f}" width="{(right - left) * scale - 1:.1f}"'
        f' height="{height * count / top:.1f}" fill="#4878a8"><title>{left:.0f} to {right:.0f}: {count}</title></rect>'
        for count, left, right in zip(counts, edges, edges[1:], strict=False)
    )
    place = max_length * scale
    line = f'<line class=cut x1="{place:.1f}" x2="{place:.1f}" y1="0" y2="{height}"/>' if place <= width else ""
    words = (
        f"Median {lengths['median']}, 99% at most {lengths['p99']}, longest {lengths['longest']}; kept: {max_length}."
    )
    return (
        f'<h2>Tokens per text: {escape(split)}</h2><svg viewBox="0 0 {width} {height + 20}" width="{width}" role="img"'
        f' aria-label="histogram of tokens">{bars}{line}<text class=label x="0" y="{height + 15}">0</text>'
        f'<text class=label x="{width}" y="{height + 15}" text-anchor="end">{edges[-1]:.0f}</text></svg><p>{words}</p>'
    )


def _examples(report: Mapping[str, Any]) -> str:
    parts = []
    if report["conflicts"]["count"]:
        rows = [[example["text"], ", ".join(example["labels"])] for example in report["conflicts"]["examples"]]
        parts.append(f"<h2>Texts with different labels</h2>{table(['text', 'labels'], rows)}")
    for overlap in report["overlaps"]:
        title = f"<h2>In training and in {escape(overlap['split'])}</h2>"
        parts.append(title + table(["text"], [[text] for text in overlap["examples"]]))
    return "".join(parts)


def _scripts_table(scripts: Mapping[str, float]) -> str:
    rows = [[name, f"{share:.1%}"] for name, share in scripts.items()]
    return f"<h2>Letters by script</h2>{table(['script', 'share'], rows)}"


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """An HTML table; numbers are right-aligned."""

    def cells(row: Sequence[Any], tag: str) -> str:
        kinds = ["" if place == 0 or isinstance(cell, str) else " class=number" for place, cell in enumerate(row)]
        return "".join(f"<{tag}{kind}>{escape(str(cell))}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><tr>{cells(header, 'th')}</tr>{body}</table>"
