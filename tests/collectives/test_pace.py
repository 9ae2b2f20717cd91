# SPDX-License-Identifier: Apache-2.0
"""How many batches are between two exchanges."""

import pytest

from lightning_sagemaker.collectives import pace
from lightning_sagemaker.collectives.pace import Pace

COST = 1e6


@pytest.fixture
def clock(monkeypatch):
    """Seconds that a test sets."""
    now = [0.0]
    monkeypatch.setattr(pace.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("seconds", "interval"),
    [([0.01] * 10, 50), ([0.001] * 10, 64), ([0.6] * 10, 1), ([*[0.001] * 199, 10.0, *[0.001] * 9800], 3)],
    ids=str,
)
def test_an_interval_is_short_even_if_batches_become_as_slow_as_one_was(clock, seconds, interval):
    found = Pace(1.0)
    for count, one in enumerate(seconds, 1):
        clock[0] += one
        found.is_due(count)
    assert found.preferred(len(seconds), COST)[0] == interval


def test_what_comes_between_batches_is_none(clock):
    found = Pace(1.0)
    found.pause()
    clock[0] += 1000.0
    found.resume()
    clock[0] += 0.001
    found.is_due(1)
    assert found.preferred(1, COST)[0] == 64
