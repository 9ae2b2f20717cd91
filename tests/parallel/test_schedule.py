# SPDX-License-Identifier: Apache-2.0
import pytest

from lightning_sagemaker.parallel.schedule import COST, Kind, make_plan


def held(order, last):
    """Most microbatches that are under way at once."""
    under_way = most = 0
    for action in order:
        under_way += (action.kind is Kind.FORWARD) - (action.kind is last)
        most = max(most, under_way)
    return most


def play(plan, split):
    """Each rank computes in its order and waits for what it needs; the time of the last one."""
    stages = 1 + max(action.stage for order in plan.orders for action in order)
    done, free, places = {}, [0] * len(plan.orders), [0] * len(plan.orders)
    back = Kind.INPUT if split else Kind.BACKWARD
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(plan.orders):
            while places[rank] < len(order):
                action = order[places[rank]]
                needed = []
                if action.kind is Kind.FORWARD and action.stage:
                    needed.append((Kind.FORWARD, action.stage - 1, action.microbatch))
                if action.kind is back:
                    needed.append((Kind.FORWARD, action.stage, action.microbatch))
                    if action.stage + 1 < stages:
                        needed.append((back, action.stage + 1, action.microbatch))
                if action.kind is Kind.WEIGHT:
                    needed.append((back, action.stage, action.microbatch))
                if any(one not in done for one in needed):
                    break
                free[rank] = max([free[rank], *(done[one] for one in needed)]) + COST[action.kind]
                done[action.kind, action.stage, action.microbatch] = free[rank]
                places[rank] += 1
                moved = True
    assert all(place == len(order) for place, order in zip(places, plan.orders, strict=True)), "deadlock"
    return max(free)


@pytest.mark.parametrize("schedule", ["interleaved", "simple", "zero_bubble", "_only_forward"])
@pytest.mark.parametrize("per_rank", [1, 2, 3])
def test_every_microbatch_passes_each_stage_once_without_deadlock(schedule, per_rank):
    for ranks in (1, 2, 3, 4, 8):
        for microbatches in (1, 2, 4, 5, 8, 13):
            for active in (None, 2):
                plan = make_plan(schedule, ranks, microbatches, per_rank, active)
                assert play(plan, schedule == "zero_bubble") <= plan.duration
                kinds = {"zero_bubble": "FIW", "_only_forward": "F"}.get(schedule, "FB")
                for rank, order in enumerate(plan.orders):
                    expected = {
                        (kind, stage, microbatch)
                        for kind in kinds
                        for stage in range(rank, ranks * per_rank, ranks)
                        for microbatch in range(microbatches)
                    }
                    assert len(order) == len(expected)
                    assert {(one.kind.value, one.stage, one.microbatch) for one in order} == expected


@pytest.mark.parametrize("schedule", ["interleaved", "simple"])
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 4), (2, 2), (2, 8), (4, 4), (4, 16), (8, 8), (8, 64)])
def test_bubble_is_that_of_the_formula(schedule, ranks, microbatches):
    plan = make_plan(schedule, ranks, microbatches)
    assert plan.bubble == pytest.approx((ranks - 1) / (microbatches + ranks - 1))


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 8), (4, 8), (4, 16), (8, 16)])
def test_more_stages_and_split_backward_passes_shrink_the_bubble(ranks, microbatches):
    plain = make_plan("interleaved", ranks, microbatches)
    looped = make_plan("interleaved", ranks, microbatches, stages_per_rank=2)
    assert looped.bubble == pytest.approx((ranks - 1) / (2 * microbatches + ranks - 1), rel=0.15)
    split = make_plan("zero_bubble", ranks, microbatches)
    assert split.bubble < 0.7 * plain.bubble


def test_one_forward_one_backward_holds_as_many_as_there_are_stages_to_come():
    plan = make_plan("interleaved", 4, 16)
    assert [held(order, Kind.BACKWARD) for order in plan.orders] == [4, 3, 2, 1]
    letters = ["".join(action.kind.value for action in order) for order in plan.orders]
    assert letters[0] == "FFFF" + "BF" * 12 + "BBBB"
    assert letters[3] == "FB" * 16
    assert [held(order, Kind.BACKWARD) for order in make_plan("simple", 4, 16).orders] == [16] * 4
    assert [held(order, Kind.WEIGHT) for order in make_plan("zero_bubble", 4, 16).orders] == [4] * 4
    assert max(held(order, Kind.BACKWARD) for order in make_plan("interleaved", 4, 16, active=2).orders) == 2


def test_unknown_schedule_is_refused():
    with pytest.raises(ValueError, match="HINT"):
        make_plan("fast", 2, 2)
