# SPDX-License-Identifier: Apache-2.0
"""Stacked bars as inline SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from lightning_sagemaker.bench.charts import COLORS, legend, round_up

_WIDTH = 440
_BAR, _GAP, _TOP, _BOTTOM = 20, 22, 4, 26
_TICKS = 4


def stacked(title: str, unit: str, parts: Sequence[str], bars: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Horizontal bars from 0, each with its name above it.

    Args:
        title: Caption, and the picture's label for screen readers.
        unit: Unit of the values.
        parts: Names of the segments, from left to right.
        bars: Name of each bar, and part -> value.

    """
    height = _TOP + len(bars) * (_BAR + _GAP) + _BOTTOM
    most = max(sum(values.values()) for _, values in bars)
    step = round_up(most / _TICKS)
    shown = []
    for number in range(int(most / step) + 1):
        x = _WIDTH * number * step / most
        anchor = "start" if number == 0 else "end" if x > _WIDTH - 20 else "middle"
        shown.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height - _BOTTOM + 4}"/>')
        shown.append(f'<text x="{x:.1f}" y="{height - 6}" text-anchor="{anchor}">{step * number:.4g}</text>')
    for place, (name, values) in enumerate(bars):
        y = _TOP + place * (_BAR + _GAP)
        total = sum(values.values())
        shown.append(f'<text x="0" y="{y + 13}">{escape(name)}: {total:.4g} {escape(unit)}</text>')
        left = 0.0
        for part, color in zip(parts, COLORS, strict=True):
            width = _WIDTH * values[part] / most
            words = f"{part} {values[part]:.3g} {unit}, {values[part] / total:.0%}"
            shown.append(
                f'<rect x="{left:.1f}" y="{y + 17}" width="{width:.1f}" height="{_BAR}" fill="{color}">'
                f"<title>{escape(words)}</title></rect>"
            )
            left += width
    return (
        f'<figure><figcaption>{escape(title)} <span class="unit">({escape(unit)})</span></figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">{"".join(shown)}</svg>'
        f"{legend(parts)}</figure>"
    )
