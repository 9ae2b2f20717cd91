# SPDX-License-Identifier: Apache-2.0
"""Plots as inline SVG, which load nothing else and print sharply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Protocol

_WIDTH, _HEIGHT = 440, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 14, 40
_TICKS = 4
COLORS = ("#2f6db0", "#c4572b", "#3b8a4f", "#7a4fa3", "#8a6d1f", "#555555")


class _Place(Protocol):
    """Converts the axes' units to pixels."""

    def __call__(self, x: float, y: float) -> tuple[float, float]: ...


@dataclass(frozen=True)
class Line:
    """One line of a plot.

    Attributes:
        name: Label in the legend.
        points: x and y of each point.
        bars: Lower and upper end of each point's interval; may be empty.
        dashed: Whether to draw it dashed, as a reference.

    """

    name: str
    points: Sequence[tuple[float, float]]
    bars: Sequence[tuple[float, float]] = field(default_factory=tuple)
    dashed: bool = False


def plot(title: str, x_name: str, y_name: str, lines: Sequence[Line], mark: float | None = None) -> str:
    """Lines over a common x, from y = 0.

    Args:
        title: Caption, and the picture's label for screen readers.
        x_name: Label of the x axis.
        y_name: Unit of the y axis, shown in the caption.
        lines: Lines, at least one with a point.
        mark: The x of a vertical line; None for no line.

    """
    xs = sorted({x for line in lines for x, _ in line.points})
    top = _TICKS * round_up(max(y for line in lines for _, y in [*line.points, *line.bars]) / _TICKS)
    low, high = xs[0], xs[-1]

    def at(x: float, y: float) -> tuple[float, float]:
        share = (x - low) / (high - low) if high > low else 0.5
        inner = _WIDTH - _LEFT - _RIGHT
        return _LEFT + share * inner, _TOP + (1 - y / top) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_axes(xs if len(xs) <= 10 else [low, high], top, at, x_name)]
    if mark is not None:
        x, _ = at(mark, 0)
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
    parts += [_line(line, COLORS[number % len(COLORS)], at) for number, line in enumerate(lines)]
    return (
        f'<figure><figcaption>{escape(title)} <span class="unit">({escape(y_name)})</span></figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
        f"{legend([line.name for line in lines])}</figure>"
    )


def legend(names: Sequence[str]) -> str:
    """The colors of some names, in the order of :data:`COLORS`.

    Args:
        names: Labels of the lines or segments.

    """
    keys = (
        f'<span class="key"><i style="background:{COLORS[number % len(COLORS)]}"></i>{escape(name)}</span>'
        for number, name in enumerate(names)
    )
    return f'<div class="legend">{"".join(keys)}</div>'


def round_up(step: float) -> float:
    """Round up to 1, 2, 2.5 or 5 times a power of ten.

    Args:
        step: Minimum distance of two ticks.

    """
    power = 10.0 ** math.floor(math.log10(step))
    return next(round_one * power for round_one in (1, 2, 2.5, 5, 10) if round_one * power >= step * 0.999)


def _axes(xs: Sequence[float], top: float, at: _Place, x_name: str) -> str:
    bottom = _HEIGHT - _BOTTOM
    parts = []
    for step in range(_TICKS + 1):
        value = top * step / _TICKS
        _, y = at(xs[0], value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>')
    for x_value in xs:
        x, _ = at(x_value, 0)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{_number(x_value)}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(x_name)}</text>')
    return "".join(parts)


def _line(line: Line, color: str, at: _Place) -> str:
    places = [at(x, y) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
    parts = [f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dashes}/>']
    if not line.dashed and len(places) <= 20:
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in places]
    for (x_value, _), (low, high) in zip(line.points, line.bars, strict=False):
        (x, y1), (_, y2) = at(x_value, low), at(x_value, high)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="1.5"/>'
        )
    return "".join(parts)


def _number(value: float) -> str:
    if value and abs(value) < 10:
        return f"{value:.3g}"
    return f"{value:,.0f}".replace(",", " ")
