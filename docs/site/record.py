# SPDX-License-Identifier: Apache-2.0
"""Run a command on a terminal and draw what it showed as an animated SVG: ``make picture``.

The terminal is a real one (a pseudo-terminal that ``pyte`` interprets); times in which nothing moves are cut short.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from html import escape
from itertools import groupby, pairwise
from pathlib import Path

import pyte

CLONE = Path(__file__).resolve().parents[2]
"""Its place on this machine is nobody's business."""
COLUMNS, LINES = 118, 30
CELL = (7.8, 17.0)
"""Width and height of a character, in pixels, of a monospaced font of 13."""
INTERVAL = 1.0
"""Seconds between two looks at the screen."""
LONGEST = 1.5
"""Seconds for which a frame is shown, however long nothing moved."""
REST = 5.0
"""Seconds for which the last frame stays."""
COLORS = {
    "red": "#e06c75",
    "green": "#98c379",
    "brown": "#e5c07b",
    "blue": "#61afef",
    "magenta": "#c678dd",
    "cyan": "#56b6c2",
}
FOREGROUND, BACKGROUND = "#d7dae0", "#1e2127"

Frame = tuple[float, list[str]]


def record(command: list[str]) -> list[Frame]:
    """When each new screen was there, in seconds, and its lines as SVG."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=environment)
    os.close(other)
    frames: list[Frame] = []
    begun = looked = time.monotonic()
    open_ = True
    while open_:
        if select.select([main], [], [], INTERVAL)[0]:
            try:
                stream.feed(os.read(main, 65536))
            except OSError:  # the other side has ended
                open_ = False
        if time.monotonic() - looked >= INTERVAL or not open_:
            looked = time.monotonic()
            lines = [draw_line(screen.buffer[row]) for row in range(LINES)]
            if not frames or frames[-1][1] != lines:
                frames.append((looked - begun, lines))
    if process.wait():
        sys.exit(f"{command} ended with {process.returncode}")
    return frames


def draw_line(cells: dict[int, pyte.screens.Char]) -> str:
    """One line; neighbors that look alike are one piece."""
    pieces, column = [], 0
    for (color, bold), group in groupby(
        (cells[number] for number in range(COLUMNS)), lambda cell: (cell.fg, cell.bold)
    ):
        text = "".join(cell.data for cell in group)
        if text.strip():
            weight = ' font-weight="bold"' if bold else ""
            begin, shown = (
                column + len(text) - len(text.lstrip()),
                text.strip().replace(str(CLONE), "lightning-sagemaker"),
            )
            pieces.append(
                f'<text x="{begin * CELL[0]:.1f}"'
                f' fill="{COLORS.get(color, FOREGROUND)}"{weight} textLength="{len(shown) * CELL[0]:.1f}"'
                f' xml:space="preserve">{escape(shown)}</text>'
            )
        column += len(text)
    return "".join(pieces)


def draw(frames: list[Frame], title: str) -> str:
    """The frames one after the other, for ever; where nothing moves, as in print, the last."""
    times = [frames[0][0]]
    for (earlier, _), (later, _) in pairwise(frames):
        times.append(times[-1] + min(later - earlier, LONGEST))
    whole = times[-1] - times[0] + REST
    width, height = COLUMNS * CELL[0] + 20, LINES * CELL[1] + 40
    rules, groups, numbers = [], [], dict[str, int]()
    for number, (when, (_, lines)) in enumerate(zip(times, frames, strict=True)):
        begin = 100 * (when - times[0]) / whole
        end = 100 * (times[number + 1] - times[0]) / whole if number + 1 < len(frames) else 100
        hidden = "opacity:1" if number + 1 == len(frames) else "opacity:0"
        rules.append(
            f"@keyframes f{number}{{0%{{opacity:0}}{begin:.2f}%{{opacity:1}}{end:.2f}%{{opacity:0}}100%{{opacity:0}}}}"
            f"#f{number}{{{hidden};animation:f{number} {whole:.1f}s step-end infinite}}"
        )
        rows = ((row, numbers.setdefault(line, len(numbers))) for row, line in enumerate(lines) if line)
        drawn = "".join(f'<use href="#l{line}" y="{(row + 1) * CELL[1]:.0f}"/>' for row, line in rows)
        groups.append(f'<g id="f{number}">{drawn}</g>')
    pieces = "".join(f'<g id="l{number}">{line}</g>' for line, number in numbers.items())
    still = "@media (prefers-reduced-motion:reduce){g{animation:none !important}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img"'
        f' font-family="ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace" font-size="13">'
        f"<title>{escape(title)}</title><style>{''.join(rules)}{still}</style>"
        f"<defs>{pieces}</defs>"
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>'
        f'<svg x="10" y="10" overflow="visible">{"".join(groups)}</svg></svg>\n'
    )


if __name__ == "__main__":
    target, *words = sys.argv[1:]
    Path(target).write_text(draw(record(words), " ".join(words)), encoding="utf-8")
