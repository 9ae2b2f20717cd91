# SPDX-License-Identifier: Apache-2.0
"""A job's time as one bar, each cause in its color, with the losses above: a self-contained SVG."""

from __future__ import annotations

from html import escape

from lightning_sagemaker.supervisor.goodput import (
    CAUSES,
    ENDING,
    RECOVERING,
    RESTARTING,
    SMALLER,
    STARTING,
    TRAINING,
    WAITING,
    Goodput,
)

_WIDTH, _HEIGHT, _MARGIN = 720, 150, 20
_TOP, _BAR = 48, 40
_TICKS = 5
_COLORS = {
    STARTING: "#9aa0a6",
    TRAINING: "#3b8a4f",
    SMALLER: "#a8cf8e",
    RECOVERING: "#c4572b",
    WAITING: "#e0a33a",
    ENDING: "#c9ccd1",
    RESTARTING: "#555555",
}


def draw(goodput: Goodput) -> str:
    """Draw the picture as SVG text."""
    begin, inner = goodput.spans[0].begin, _WIDTH - 2 * _MARGIN

    def x(at: float) -> float:
        return _MARGIN + (at - begin) / goodput.total * inner

    title = f"goodput {goodput.share:.1%} of {goodput.total:.0f} s, {len(goodput.losses)} ranks lost"
    parts = [f'<text x="{_MARGIN}" y="18" font-size="14" font-weight="bold">{escape(title)}</text>']
    for span in goodput.spans:
        parts.append(
            f'<rect x="{x(span.begin):.2f}" y="{_TOP}" width="{x(span.end) - x(span.begin):.2f}" height="{_BAR}"'
            f' fill="{_COLORS[span.cause]}"><title>{span.cause}: {span.end - span.begin:.2f} s</title></rect>'
        )
    for at in goodput.losses:
        parts.append(f'<path d="M{x(at):.2f} {_TOP - 2} l-4 -8 h8 z" fill="#222"/>')
    for number in range(_TICKS + 1):
        seconds = goodput.total * number / _TICKS
        anchor = "start" if not number else "end" if number == _TICKS else "middle"
        parts.append(
            f'<text x="{x(begin + seconds):.1f}" y="{_TOP + _BAR + 16}" text-anchor="{anchor}">{seconds:.0f} s</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
        f' role="img" aria-label="{escape(title)}" font-family="sans-serif" font-size="12" fill="#222">'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>{"".join(parts)}{_legend(goodput)}</svg>\n'
    )


def _legend(goodput: Goodput) -> str:
    found, left = "", float(_MARGIN)
    y = _HEIGHT - 18
    for cause in CAUSES:
        if seconds := goodput.seconds.get(cause, 0.0):
            text = f"{cause} {seconds / goodput.total:.1%}"
            found += f'<rect x="{left:.0f}" y="{y - 10}" width="11" height="11" fill="{_COLORS[cause]}"/>'
            found += f'<text x="{left + 15:.0f}" y="{y}">{escape(text)}</text>'
            left += 25 + 6.4 * len(text)
    return found
