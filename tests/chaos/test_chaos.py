# SPDX-License-Identifier: Apache-2.0
"""Interruptions of one real job of two processes: nothing hangs, and every step is the one it would have been.

``make chaos`` does it hundreds of times, with each kind of interruption, and measures the times on a quiet machine.
"""

import pytest

from tests.chaos.harness import DAMAGE, FULL, GENTLE, SAVE_EVERY, Chaos, lines_of, table

CASES = ("SIGTERM to the launcher", FULL, "SIGUSR1 to rank 1", "SIGKILL of the container", DAMAGE[1])
STEPS = 120
_SLACK = 15.0
"""Seconds more than the time between checkpoints: the job spaces them where saving is slow, and steps take long in CI."""


@pytest.fixture(scope="module")
def chaos(tmp_path_factory):
    chaos = Chaos(tmp_path_factory.mktemp("job"), STEPS, seed=11)
    try:
        chaos.reference()
        for event in CASES:
            chaos.interrupt(event if event != FULL or chaos.has_small_disk else "SIGTERM to rank 0")
        chaos.finish()
        yield chaos
    finally:
        chaos.close()


@pytest.mark.timeout(400)
def test_every_interruption_ends_the_job_in_time(chaos):
    print(table(chaos.outcomes))
    assert len(chaos.outcomes) == len(CASES)
    assert not [outcome for outcome in chaos.outcomes if outcome.hung]
    assert all(outcome.returncode for outcome in chaos.outcomes)


def test_every_step_is_the_one_it_would_have_been(chaos):
    """The loss to its last bit, with dropout, and the samples, of all steps of all starts."""
    assert chaos.wrong_steps() == []
    assert {line["step"] for line in lines_of(chaos.folder)} == set(range(1, STEPS + 1))


def test_after_a_signal_nothing_is_lost(chaos):
    gentle = [outcome for outcome in chaos.outcomes if outcome.event in GENTLE]
    assert len(gentle) >= 2
    assert {outcome.lost_steps for outcome in gentle} == {0}


def test_after_a_kill_at_most_the_time_between_checkpoints_is_lost(chaos):
    lost = [outcome.lost_seconds for outcome in chaos.outcomes if outcome.event.startswith("SIGKILL")]
    assert len(lost) == 1
    assert max(lost) < SAVE_EVERY + _SLACK


def test_damaged_checkpoints_are_not_used(chaos):
    log = (chaos.folder / "log").read_text()
    assert "is damaged; skipping it" in log or "is incomplete; skipping it" in log
    if chaos.has_small_disk:
        assert "was not written: no space left" in log
