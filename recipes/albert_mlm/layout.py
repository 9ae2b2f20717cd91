# SPDX-License-Identifier: Apache-2.0
"""What the beginning of a text shows: that it is no text with an article on each line, or that articles have several."""

from __future__ import annotations

import contextlib
import csv
import re
from collections import Counter
from itertools import groupby

_COMMENTS = r"\s*(?:<!--.*?-->\s*)*"
_DOCUMENT = re.compile(rf"{_COMMENTS}<(?:!doctype|\?xml|html|mediawiki)\b", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(rf"{_COMMENTS}<[a-z][\w:.-]*(?:\s[^<>]*)?>", re.IGNORECASE | re.DOTALL)
_ONLY_TAG = re.compile(r"^<([A-Za-z][\w:.-]*)(?:\s[^<>\n]*)?>\s*$", re.MULTILINE)
_CLOSED = re.compile(r"</([a-z][\w:.-]*)\s*>", re.IGNORECASE)
_HEADERS = r"(?:From|To|Date|Subject|Message-ID|Return-Path|Received|Newsgroups|Path|Xref|Reply-To|Delivered-To)"
_KINDS = tuple(
    (what, re.compile(pattern))
    for what, pattern in (
        (
            "a file of subtitles",
            r"WEBVTT\b|\d+\s*\n\d+:\d\d:\d\d[,.]\d+ --> |\[Script Info\]|\{\d+\}\{\d+\}|\[\d+:\d\d\.\d+\]",
        ),
        ("an archive of mail", rf"(?i)From \S.*\n{_HEADERS}:|(?:{_HEADERS}:.*\n(?:[ \t].*\n)*){{3}}"),
        ("a bank's statement", r"(?:\{1:.*)?:20:.*\s:|OFXHEADER:|!(?:Type|Account)\b"),
        ("a list of references", r"TY  - |PMID- |@[A-Za-z]+\s*\{[^\n,]*,\s*\n"),
        (
            "a dump of a database",
            r"(?:--.*\n\s*)*(?:(?:(?:CREATE|DROP|LOCK) TABLE|INSERT INTO|PRAGMA|SET)[ ]\w|/\*!\d|\\restrict )",
        ),
        ("tokens with tags", r"-DOCSTART-|(?:(?:\S+ )+(?:O|[BILUES]-\w+)[ \r]*\n\s*){10}"),
        ("a transcript in CHAT's format", r"@UTF8\s"),
        (
            "a list in JSON or Python",
            r"\[\s*(?:\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')\s*(?:,|\][ \r]*(?:,|\n|\Z))",
        ),
    )
)
"""What files are whose text begins so, by the definitions of their formats."""
_TABLES = {",": "commas", ";": "semicolons", "|": "bars"}
_NAME = re.compile(r"[^\W\d]\w*(?:[ -]\w+){0,2}")
"""The name of a column: at most three words."""
_COMMENT = "#"
_LEAST = 10
"""Number of lines that show how a text is laid out."""
_MOST = 100
"""Lines between two empty ones from which these are there by chance."""
_MARK = re.compile(r"[^\w\s].*[^\w\s]")
"""A line that may separate articles, such as ``<|endoftext|>``."""


def foreign_text(text: str) -> str | None:
    """What a text is that begins so, in words, if its lines are no articles."""
    # SGML does not close all elements.
    elements = {*_CLOSED.findall(text), *_ONLY_TAG.findall(text)} if _TAG.match(text) else set()
    if len(elements) > 1 or _DOCUMENT.match(text):  # a single one may be <s>, around sentences
        return "an HTML or XML document"
    if what := next((what for what, pattern in _KINDS if pattern.match(text)), None):
        return what
    lines = [line.rstrip(" \r") for line in _whole_lines(text)]
    lines = [line for line in lines if line and not line.startswith(_COMMENT)]
    columns = {line.count("\t") + 1 if line[0] != "\t" else 1 for line in lines}
    if len(lines) >= _LEAST and len(columns) == 1 and columns != {1}:
        return f"a table of {columns.pop()} columns separated by tabs, such as {lines[0][:60]!r}"
    if len(lines) > _LEAST and all(line[0] == line[-1] == '"' for line in lines[1:]):
        return f"texts in quotes, such as {lines[1][:60]!r}"
    for delimiter, name in _TABLES.items():
        if len(lines) > _LEAST and (width := _width(lines, delimiter)) > 1:
            return f"a table of {width} columns separated by {name}, such as {lines[0][:60]!r}"
    return None


def _width(lines: list[str], delimiter: str) -> int:
    """Number of columns, if the first line has their names and all have as many fields; else 0."""
    names = lines[0].split(delimiter)
    if len(names) < 2 or not all(_NAME.fullmatch(name.strip('"')) for name in names):
        return 0
    with contextlib.suppress(csv.Error):
        rows = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)
        return len(names) if all(len(row) == len(names) for row in rows) else 0
    return 0


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
