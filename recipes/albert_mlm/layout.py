# SPDX-License-Identifier: Apache-2.0
"""What the beginning of a text shows: that it is no text with an article on each line, or that articles have several."""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby

_COMMENTS = r"\s*(?:<!--.*?-->\s*)*"
_DOCUMENT = re.compile(rf"{_COMMENTS}<(?:!doctype|\?xml|html|mediawiki)\b", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(rf"{_COMMENTS}<[a-z][\w:.-]*(?:\s[^<>]*)?>", re.IGNORECASE | re.DOTALL)
_CLOSED = re.compile(r"</([a-z][\w:.-]*)\s*>", re.IGNORECASE)
_SUBTITLES = re.compile(r"WEBVTT\b|\d+\s*\n\d+:\d\d:\d\d[,.]\d+ --> ")
_COMMENT = "#"
_LEAST = 10
"""Number of lines that show how a text is laid out."""
_MOST = 100
"""Lines between two empty ones from which these are there by chance."""
_MARK = re.compile(r"[^\w\s].*[^\w\s]")
"""A line that may separate articles, such as ``<|endoftext|>``."""


def foreign_text(text: str) -> str | None:
    """What a text is that begins so, in words, if its lines are no articles."""
    elements = set(_CLOSED.findall(text)) if _TAG.match(text) else set()
    if len(elements) > 1 or _DOCUMENT.match(text):  # a single one may be <s>, around sentences
        return "an HTML or XML document"
    if _SUBTITLES.match(text):
        return "a file of subtitles"
    lines = [line.rstrip(" \r") for line in _whole_lines(text)]
    lines = [line for line in lines if line and not line.startswith(_COMMENT)]
    columns = {line.count("\t") + 1 if line[0] != "\t" else 1 for line in lines}
    if len(lines) >= _LEAST and len(columns) == 1 and columns != {1}:
        return f"a table of {columns.pop()} columns separated by tabs, such as {lines[0][:60]!r}"
    return None


def layout_remark(text: str) -> str | None:
    """A remark on a text that begins so, if its articles seem to have several lines each."""
    lines = [line.strip() for line in _whole_lines(text)]
    groups = [len(list(group)) for is_text, group in groupby(lines, bool) if is_text]
    count = sum(groups)
    if count < _LEAST:
        return None
    marks = Counter(filter(_MARK.fullmatch, lines)) or Counter([""])
    [(mark, times)] = marks.most_common(1)
    if times >= max(_LEAST / 2, count / _MOST):
        return (
            f"each line is an article of its own, and so is {mark[:40]!r}, {times} of the first {count} lines."
            " HINT: if it separates articles, write each on one line, or as JSON lines."
        )
    if len(groups) > 1 and 1.5 * len(groups) < count < _MOST * len(groups):
        return (
            f"each line is an article of its own, though empty lines separate groups of {count / len(groups):.0f} of them."
            " HINT: if these are the articles, write each on one line, for example with"
            """ awk -v RS= '{gsub(/\\n/, " ")} 1' IN > OUT"""
        )
    return None


def _whole_lines(text: str) -> list[str]:
    """The lines, without the last, which may be cut off, if there are several."""
    lines = text.split("\n")
    return lines[:-1] or lines
