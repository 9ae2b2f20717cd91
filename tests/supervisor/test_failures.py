# SPDX-License-Identifier: Apache-2.0
"""How often a step has failed."""

from lightning_sagemaker.supervisor.failures import Failures


def test_failures_of_a_step_add_up_whatever_comes_between():
    failures = Failures()
    for count, (step, rank) in enumerate([(7, 0), (7, 1), (9, 0), (7, 2)], start=1):
        failures.lose(rank)
        failures.discard(fails=True)
        assert failures.of(step)[0] == (3 if count == 4 else 1 if step == 9 else count)
        failures.settle(step)
    assert failures.of(7) == (3, [0, 1, 2])
    assert failures.of(8) == (0, [])


def test_one_that_does_not_count():
    failures = Failures()
    failures.discard(fails=False)
    failures.settle(7)
    assert failures.of(7) == (0, [])


def test_the_end_of_all_ranks_is_limited_elsewhere():
    failures = Failures()
    failures.lose(1)
    failures.discard(fails=True)
    failures.settle(None)
    assert failures.of(7) == (0, [])
