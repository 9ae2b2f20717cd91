# SPDX-License-Identifier: Apache-2.0
"""The report of an evaluation: a few lines for the terminal, and a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from textwrap import shorten
from typing import Any

from lightning_sagemaker.recipes._common.outputs.report_pages import page, table

_NAMED = 3
"""Maximum number of pairs of classes on the terminal."""
_CELL, _FONT = 18, 11
"""Pixels of a cell of the confusion matrix and of its font, before zooming."""
_LETTER = 6.2
"""Mean width of a letter in that font, in pixels."""
_EXAMPLE = 120
"""Maximum characters of an example text."""
_PLOT = 240
"""Width and height of a reliability diagram, in pixels."""

_STYLE = """
.matrix { border: 1px solid #ddd; cursor: grab; touch-action: none; width: 100%; height: 80vh; background: #fff }
.matrix text { font: 11px system-ui, sans-serif; fill: #222 } .matrix .n { text-anchor: middle; pointer-events: none }
.buttons button { font: inherit; margin: 0 .4em .4em 0; padding: .1em .7em }
.scale { display: inline-block; width: 9em; height: .8em; vertical-align: middle; margin: 0 .4em }
.plots { display: flex; flex-wrap: wrap; gap: 2em } .plots svg { background: none; overflow: visible }
.plots text { font-size: 11px; fill: #555 } .wide { overflow-x: auto } .wide td { overflow-wrap: anywhere; min-width: 2.5em }
.wide td:nth-child(5):last-child { min-width: 20em; color: #555 } body { max-width: 80em }
"""

_SCRIPT = """
for (const svg of document.querySelectorAll('svg.matrix')) {
  const whole = svg.getAttribute('viewBox').split(' ').map(Number);
  let [x, y, w, h] = whole;
  const show = () => svg.setAttribute('viewBox', [x, y, w, h].join(' '));
  const place = e => new DOMPoint(e.clientX, e.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const zoom = (factor, at) => {
    x = at.x - (at.x - x) * factor; y = at.y - (at.y - y) * factor; w *= factor; h *= factor; show();
  };
  const turned = e => { e.preventDefault(); zoom(e.deltaY < 0 ? 1 / 1.2 : 1.2, place(e)); };
  svg.addEventListener('wheel', turned, {passive: false});
  let from = null;
  svg.addEventListener('pointerdown', e => { from = place(e); svg.setPointerCapture(e.pointerId); });
  svg.addEventListener('pointermove', e => {
    if (from) { const to = place(e); x += from.x - to.x; y += from.y - to.y; show(); }
  });
  svg.addEventListener('pointerup', () => { from = null; });
  const middle = () => ({x: x + w / 2, y: y + h / 2});
  const act = {in: () => zoom(1 / 1.5, middle()), out: () => zoom(1.5, middle()),
               all: () => { [x, y, w, h] = whole; show(); }};
  for (const button of svg.parentNode.querySelectorAll('button')) button.onclick = () => act[button.value]();
}
"""


def findings(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The main findings: name and text of each.

    Args:
        report: From :func:`~metrics.report`.

    """
    pairs = report.get("most_confused", ())[:_NAMED]
    found = (
        [("most confused", ", ".join(f"{p['true']} as {p['predicted']} {p['count']}" for p in pairs))] if pairs else []
    )
    calibration = report["calibration"]
    text = f"calibration error {calibration['ece']:.3f}"
    if "temperature" in calibration:
        text += f", {calibration['with_temperature']['ece']:.3f} with the temperature {calibration['temperature']:.3f}"
    found.append(("probabilities", text))
    if "threshold_f1" in calibration:
        found.append(
            ("threshold", f"{calibration['threshold']:.3f} gives the best F1, {calibration['threshold_f1']:.4f}")
        )
    return found


def evaluation_page(title: str, report: Mapping[str, Any], texts: Sequence[Sequence[str]]) -> str:
    """The report as one HTML file that loads nothing else.

    Args:
        title: Title of the page.
        report: From :func:`~metrics.report`, with the samples' numbers in the split.
        texts: Texts of the split.

    """
    parts = [f"<h1>{escape(title)}</h1>"]
    if "confusion" in report:
        parts += [_summary(report), _pairs(report["most_confused"], texts)]
    parts.append(_calibration(report["calibration"]))
    if "confusion" in report:
        parts += [_matrix(report["confusion"], list(report["classes"])), _classes(report["classes"])]
    return page(title, parts, _STYLE, _SCRIPT)


def _summary(report: Mapping[str, Any]) -> str:
    counts = report["confusion"]
    total, right = sum(map(sum, counts)), sum(row[place] for place, row in enumerate(counts))
    return f"<p>{right} of {total} samples are correct ({right / max(1, total):.2%}), in {len(counts)} classes.</p>"


def _pairs(pairs: Sequence[Mapping[str, Any]], texts: Sequence[Sequence[str]]) -> str:
    if not pairs:
        return ""
    rows = [
        [
            pair["true"],
            pair["predicted"],
            pair["count"],
            f"{pair['share']:.0%}",
            " / ".join(shorten(" + ".join(texts[number]), _EXAMPLE) for number in pair["samples"]),
        ]
        for pair in pairs
    ]
    header = ["class", "predicted", "samples", "of the class", "such as"]
    return f"<h2>Most confused</h2><div class=wide>{table(header, rows)}</div>"


def _calibration(calibration: Mapping[str, Any]) -> str:
    plots = [_reliability("as predicted", calibration)]
    if "temperature" in calibration:
        title = f"with the temperature {calibration['temperature']:.3f}, fitted on validation"
        plots.append(_reliability(title, calibration["with_temperature"]))
    words = (
        "Accuracy (bars) by predicted confidence; on the dashed line the two agree. The expected calibration error is the"
        " mean distance from that line."
    )
    if "threshold" in calibration:
        best = f" (F1 {calibration['threshold_f1']:.4f})" if "threshold_f1" in calibration else ""
        words += f" The best threshold of the last validation is {calibration['threshold']:.4f}{best}."
    used = calibration["used"]
    words += f" In force: temperature {used['temperature']:.4g}, threshold {used['threshold']:.4g}."
    return f"<h2>Reliability of the probabilities</h2><p>{words}</p><div class=plots>{''.join(plots)}</div>"


def _reliability(title: str, measured: Mapping[str, Any]) -> str:
    bins = measured["bins"]
    width, most = _PLOT / len(bins), max(1, *(one["count"] for one in bins))
    bars = [
        f'<rect x="{place * width:.1f}" y="{_PLOT * (1 - one["accuracy"]):.1f}" width="{width - 1:.1f}"'
        f' height="{max(1.0, _PLOT * one["accuracy"]):.1f}" fill="#4878a8"'
        f' fill-opacity="{0.35 + 0.65 * one["count"] / most:.2f}">'
        f"<title>{one['count']} samples: probability {one['confidence']:.3f}, right {one['accuracy']:.3f}</title></rect>"
        for place, one in enumerate(bins)
        if one["count"]
    ]
    ticks = "".join(
        f'<text x="{share * _PLOT:.0f}" y="{_PLOT + 14}" text-anchor="middle">{share:g}</text>'
        f'<text x="-4" y="{_PLOT * (1 - share) + 4:.0f}" text-anchor="end">{share:g}</text>'
        for share in (0, 0.5, 1)
    )
    return (
        f"<figure><figcaption>{escape(title)}: error {measured['ece']:.4f}</figcaption>"
        f'<svg viewBox="-30 -6 {_PLOT + 40} {_PLOT + 36}" width="{_PLOT + 40}" role="img">'
        f'<rect width="{_PLOT}" height="{_PLOT}" fill="#fafafa" stroke="#ddd"/>{"".join(bars)}'
        f'<line class=cut x1="0" y1="{_PLOT}" x2="{_PLOT}" y2="0"/>{ticks}'
        f'<text x="{_PLOT / 2}" y="{_PLOT + 28}" text-anchor="middle">probability</text></svg></figure>'
    )


def _matrix(counts: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    room = _LETTER * max(map(len, names)) + 10
    side = _CELL * len(names)
    cells = "".join(
        _cell(true, predicted, count, sum(row), names)
        for true, row in enumerate(counts)
        for predicted, count in enumerate(row)
        if count
    )
    lines = "".join(
        f'<path d="M{-room:.0f} {place * _CELL}H{side}M{place * _CELL} {-room:.0f}V{side}" stroke="#eee"/>'
        for place in range(len(names) + 1)
    )
    labels = "".join(
        f'<text x="-5" y="{(place + 0.5) * _CELL + 4}" text-anchor="end">{escape(name)}</text>'
        f'<text transform="translate({(place + 0.5) * _CELL + 4} -5) rotate(-90)">{escape(name)}</text>'
        for place, name in enumerate(names)
    )
    bars = "".join(
        f'{what} 0%<span class=scale style="background:linear-gradient(to right,#fff,{color})"></span>100%&emsp;'
        for what, color in (("right", _color(1, True)), ("wrong", _color(1, False)))
    )
    box = f"{-room - 10:.0f} {-room - 10:.0f} {side + room + 20:.0f} {side + room + 20:.0f}"
    return (
        "<h2>Confusion matrix</h2><p>Rows are the true classes, columns the predicted ones; colors are shares of the row:"
        f" {bars}</p><div><div class=buttons><button value=in>+</button><button value=out>&minus;</button>"
        "<button value=all>all</button> wheel: zoom, drag: move, point at a cell: names</div>"
        f'<svg class=matrix viewBox="{box}" role="img">{lines}{cells}{labels}</svg></div>'
    )


def _cell(true: int, predicted: int, count: int, total: int, names: Sequence[str]) -> str:
    share = count / max(1, total)
    color = _color(share, true == predicted)
    ink = "#fff" if share > 0.55 else "#222"
    words = f"{names[true]} as {names[predicted]}: {count} of {total} ({share:.0%})"
    return (
        f'<rect x="{predicted * _CELL}" y="{true * _CELL}" width="{_CELL}" height="{_CELL}" fill="{color}">'
        f'<title>{escape(words)}</title></rect><text class=n style="fill:{ink};font-size:{_FONT if count < 100 else 8}px"'
        f' x="{(predicted + 0.5) * _CELL}" y="{(true + 0.5) * _CELL + 4}">{count}</text>'
    )


def _color(share: float, is_right: bool) -> str:
    """White to blue where right, to red where wrong."""
    full = (32, 92, 152) if is_right else (178, 40, 40)
    return "#" + "".join(f"{round(255 + share * (part - 255)):02x}" for part in full)


def _classes(classes: Mapping[str, Mapping[str, Any]]) -> str:
    header = ["class", "samples", "precision", "recall", "F1"]
    worst = sorted(classes.items(), key=lambda entry: entry[1]["f1"])
    rows = [
        [name, one["samples"], *(f"{one[key]:.3f}" for key in ("precision", "recall", "f1"))] for name, one in worst
    ]
    return f"<h2>Classes, worst first</h2><div class=wide>{table(header, rows)}</div>"
