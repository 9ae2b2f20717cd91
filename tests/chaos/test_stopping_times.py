# SPDX-License-Identifier: Apache-2.0
"""A signal ends a run within a step or two seconds, and one more. All phases and lengths: stopping_times.py."""

import pytest

from tests.chaos.stopping_times import Case, measure


@pytest.mark.alone
@pytest.mark.parametrize("seconds", [0.001, 0.3])
@pytest.mark.parametrize("phase", ["training", "validation", "accumulation"])
def test_a_signal_ends_a_run_as_soon_as_promised(phase, seconds):
    stop = measure(Case(phase, seconds, limit=8.0, settled=0.5))
    assert stop.is_in_time, f"last step {stop.last_step} s, gone {stop.gone} s after the signal:\n{stop.output[-3000:]}"
