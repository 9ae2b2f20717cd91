# SPDX-License-Identifier: Apache-2.0
"""``Any`` in the source may only become less: a Protocol, or a class of Lightning or torch, says more."""

import io
import tokenize
from collections import Counter

from tests.conftest import ROOT

MOST = 1.5
"""``Any`` per 100 lines of src, imports included."""

CEILINGS = {
    # Folders that import no torch.
    "commands": 8,
    "container": 2,
    "job": 0,
    "launch": 79,
    "loggers": 13,
    "package": 8,
    "simulator": 23,
    # Strategies, and what they are made of.
    "_compat": 0,
    "callbacks": 0,
    "checkpoint": 15,
    "collectives": 5,
    "smdistributed": 35,
    "strategies": 63,
    "torch_sagemaker": 11,
    # Data.
    "bench": 10,
    "data": 168,
    # Pipelines.
    "parallel": 147,
    # Recovery.
    "recovery": 96,
    "supervisor": 22,
}
"""Room -> how often it may say ``Any``; ``package`` is the files at the top. A row is lowered with its room."""


def counted() -> tuple[Counter[str], int]:
    """How often each room says ``Any``, and the lines of all."""
    src, found, lines = ROOT / "src" / "lightning_sagemaker", Counter(), 0
    for path in src.rglob("*.py"):
        parts = path.relative_to(src).parts
        if parts[0] != "recipes":
            text = path.read_text()
            lines += len(text.splitlines())
            tokens = tokenize.generate_tokens(io.StringIO(text).readline)
            found[parts[0] if len(parts) > 1 else "package"] += sum(
                token.type == tokenize.NAME and token.string == "Any" for token in tokens
            )
    return found, lines


def test_any_does_not_become_more():
    found, lines = counted()
    assert set(found) <= set(CEILINGS)
    grown = {room: f"{count}, and at most {CEILINGS[room]}" for room, count in found.items() if count > CEILINGS[room]}
    assert not grown, f"more often Any than allowed: {grown}"
    share = 100 * sum(found.values()) / lines
    assert share <= MOST, f"{found.total()} times Any in {lines} lines: {share:.2f} per 100, and {MOST} are allowed"
