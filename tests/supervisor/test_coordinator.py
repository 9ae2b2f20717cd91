# SPDX-License-Identifier: Apache-2.0
"""Ranks, played by threads, and their coordinator: who trains together, which steps count, and what each is told."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lightning_sagemaker.recovery import wire
from tests.supervisor.played_ranks import Ranks


@pytest.fixture
def ranks() -> Iterator[Callable[..., Ranks]]:
    made: list[Ranks] = []

    def make(**settings: Any) -> Ranks:
        made.append(Ranks(**settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_all_start_together(ranks):
    job = ranks(world_size=3)
    early = job.ask(job.join(0).start)
    time.sleep(0.05)
    assert not early.done()
    replies = [*job.start(1, 2), early.result(5)]
    assert {reply["kind"] for reply in replies} == {wire.Kind.FIRST}
    assert all(
        reply["order"] == [0, 1, 2] and [one["rank"] for one in reply["infos"]] == [0, 1, 2] for reply in replies
    )


def test_a_step_counts_for_all_or_for_none(ranks):
    job = ranks(world_size=2)
    job.start(0, 1)
    waits = job.ask(job.clients[0].commit, 1, True)
    time.sleep(0.05)
    assert not waits.done()
    assert job.commit(1, 1) == [True]
    assert waits.result(5)["commit"]
    assert job.coordinator.step == 1
    waits = job.ask(job.clients[0].commit, 2, True)
    assert job.commit(2, 1, ok=False) == [False]
    assert not waits.result(5)["commit"]
    assert job.coordinator.step == 1
    assert job.notices[0].wait(5)  # both are told that the quorum is over
    assert [reply["order"] for reply in job.quorum([1], 0, 1)] == [[0, 1]] * 2


def test_the_others_go_on_without_a_rank_whose_connection_ends(ranks):
    job = ranks(world_size=3)
    job.start(0, 1, 2)
    waits = job.ask(job.clients[0].commit, 1, True)
    job.clients[1].close()
    assert not waits.result(5)["commit"]
    assert job.clients[2].changed or job.notices[2].wait(5)
    replies = job.quorum([0], 0, 2)
    assert all((reply["order"], reply["sources"], reply["end"]) == ([0, 2], [0, 2], None) for reply in replies)
    assert job.commit(1, 0, 2) == [True, True]
    assert not job.clients[0].changed


def test_the_first_of_a_quorum_is_one_that_has_the_state(ranks):
    job = ranks(world_size=2)
    job.start(0, 1)
    job.clients[0].close()
    assert job.notices[1].wait(5)
    job.quorum([5], 1)
    assert [(reply["kind"], reply["order"]) for reply in job.start(0)] == [("join", [0])]
    joins = job.ask(job.clients[0].next_quorum, None)
    while not (decision := job.clients[1].commit(6, True))["change"]:  # until the replacement has asked
        assert decision["commit"]
    job.quorum([6], 1)
    reply = joins.result(5)
    assert (reply["order"], reply["sources"]) == ([1, 0], [1])


def test_who_is_behind_gets_the_state_of_who_is_ahead(ranks):
    job = ranks(world_size=3)
    job.start(0, 1, 2)
    job.clients[2].close()
    job.notices[0].wait(5)
    asked = [job.ask(job.clients[0].next_quorum, [4, 1, 0]), job.ask(job.clients[1].next_quorum, [4, 2, 0])]
    replies = [one.result(5) for one in asked]
    assert [reply["sources"] for reply in replies] == [[1], [1]]
    assert [reply["holders"] for reply in replies] == [[0, 1], [0, 1]]  # their weights are those of the same step


def test_a_replica_is_lost_with_any_of_its_ranks_and_comes_back_as_one(ranks):
    job = ranks(world_size=4, replica=2)
    job.start(0, 1, 2, 3)
    vote = job.ask(job.clients[0].commit, 1, True)
    job.clients[3].close()
    assert vote.result(5)["commit"] is False
    assert [(reply["order"], reply["end"]) for reply in job.quorum([0], 0, 1)] == [([0, 1], None)] * 2
    assert job.silent == [2]  # which is killed: it has half of a model
    early = job.ask(job.join(3).start)
    assert job.commit(1, 0, 1) == [True, True]
    assert not early.done()
    replies = [*job.start(2), early.result(5)]
    assert [(reply["kind"], reply["order"], len(reply["infos"])) for reply in replies] == [("join", [2, 3], 2)] * 2
    joins = [job.ask(job.clients[2].next_quorum, None)]
    assert job.coordinator_hears_of(2)
    decisions = [job.ask(job.clients[rank].commit, 2, True) for rank in (0, 1)]
    assert [one.result(5)["change"] for one in decisions] == [False, False]  # of one that is alone there is no replica
    joins.append(job.ask(job.clients[3].next_quorum, None))
    assert job.coordinator_hears_of(3)
    decisions = [job.ask(job.clients[rank].commit, 3, True) for rank in (0, 1)]
    assert [one.result(5)["change"] for one in decisions] == [True, True]
    replies = [*job.quorum([3], 0, 1), *(one.result(5) for one in joins)]
    assert [(reply["order"], reply["sources"], reply["holders"]) for reply in replies] == [
        ([0, 1, 2, 3], [0, 1], [0, 1])
    ] * 4


def test_a_replica_that_loses_a_rank_while_it_prepares_begins_again(ranks):
    job = ranks(world_size=4, replica=2)
    job.start(0, 1, 2, 3)
    job.clients[3].close()
    assert job.notices[0].wait(5)
    job.quorum([0], 0, 1)
    job.start(2, 3)
    job.silent.clear()
    job.clients[2].close()
    deadline = time.monotonic() + 5
    while job.silent != [3] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert job.silent == [3]
    assert job.commit(1, 0, 1) == [True, True]  # the others do not notice


def test_a_host_with_a_part_of_a_replica_stays(ranks):
    job = ranks(world_size=4, replica=2)
    job.start(0, 1, 2, 3)
    job.coordinator.leave([3])
    assert job.commit(1, 0, 1, 2, 3) == [True] * 4
    job.coordinator.leave([2, 3])
    decisions = [job.ask(job.clients[rank].commit, 2, True) for rank in range(4)]
    assert [one.result(5)["change"] for one in decisions] == [True] * 4


def test_a_replacement_is_waited_for_if_that_was_asked(ranks):
    job = ranks(world_size=2, rejoin_timeout=30)
    job.start(0, 1)
    job.clients[1].close()
    job.notices[0].wait(5)
    waits = job.ask(job.clients[0].next_quorum, [0])
    job.start(1)
    joins = job.ask(job.clients[1].next_quorum, None)
    assert waits.result(5)["order"] == joins.result(5)["order"] == [0, 1]


def test_it_is_not_waited_for_longer(ranks):
    job = ranks(world_size=2, rejoin_timeout=0.5)
    job.start(0, 1)
    job.clients[1].close()
    job.notices[0].wait(5)
    begin = time.monotonic()
    assert job.quorum([0], 0)[0]["order"] == [0]
    assert time.monotonic() - begin > 0.3


def test_too_few_end_together(ranks):
    job = ranks(world_size=3, minimum=2, patience=0.2)
    job.start(0, 1, 2)
    job.clients[1].close()
    job.clients[2].close()
    reply = job.quorum([3], 0)[0]
    assert (reply["end"], reply["order"]) == ({"why": "few", "left": 1, "minimum": 2, "collective": ""}, [0])
    assert job.start(2)[0]["kind"] == "over"
    assert job.coordinator.ended


def test_a_collective_of_the_script_needs_all(ranks):
    job = ranks(world_size=3, attempts=2, patience=0.4)
    job.start(0, 1, 2)
    job.commit(1, 0, 1, 2)
    job.clients[2].close()
    job.notices[0].wait(5)
    assert job.quorum([1], 0, 1)[0]["order"] == [0, 1]
    job.notices[0].clear()
    job.clients[1].wait_for_all("allgather")  # which does not count as another failure of the step
    assert job.notices[0].wait(5)
    waiting = [job.ask(job.clients[rank].next_quorum, [1]) for rank in (0, 1)]
    job.start(2)
    waiting.append(job.ask(job.clients[2].next_quorum, None))
    assert [(one.result(5)["order"], one.result(5)["end"]) for one in waiting] == [([0, 1, 2], None)] * 3
    assert job.commit(2, 0, 1, 2) == [True] * 3
    job.clients[2].close()
    reply = job.quorum([2], 0, 1)[0]
    assert reply["end"] == {"why": "few", "left": 2, "minimum": 3, "collective": "allgather"}


def test_a_step_that_fails_again_and_again_ends_the_job(ranks):
    job = ranks(world_size=3, attempts=2)
    job.start(0, 1, 2)
    job.commit(1, 0, 1, 2)
    job.clients[2].close()
    job.notices[0].wait(5)
    assert job.quorum([1], 0, 1)[0]["end"] is None
    job.notices[0].clear()
    job.clients[1].close()
    job.notices[0].wait(5)
    assert job.quorum([1], 0)[0]["end"] == {"why": "stuck", "step": 1, "failures": 2, "lost": [2, 1]}


def test_losses_after_a_restart_are_of_the_steps_that_it_repeats(ranks):
    job = ranks(world_size=2, attempts=2)
    job.start(0, 1)
    job.commit(50, 0, 1)
    job.clients[1].close()
    job.notices[0].wait(5)
    assert job.quorum(None, 0)[0]["sources"] == []  # it was in the middle of a step
    job.clients[0].close()
    job.start(0, 1)  # both begin again, from a checkpoint of step 10
    job.clients[1].close()
    job.notices[0].wait(5)
    assert job.quorum([10], 0)[0]["end"] is None


def test_a_silent_rank_is_lost_and_ended(ranks, monkeypatch):
    job = ranks(world_size=2, silence=2.5)
    job.start(0, 1)
    monkeypatch.setattr(job.clients[1], "_send", lambda message: None)  # as if frozen: its connection stays
    monkeypatch.setattr(job.clients[1], "_end", lambda: None)
    assert job.notices[0].wait(10)
    deadline = time.monotonic() + 5  # the others are told first
    while not job.silent and time.monotonic() < deadline:
        time.sleep(0.01)
    assert job.silent == [1]
    assert job.quorum([0], 0)[0]["order"] == [0]


def test_the_end_is_no_loss_and_late_ones_hear_of_it(ranks):
    job = ranks(world_size=3)
    job.start(0, 1, 2)
    for rank in (1, 0):
        job.clients[rank].finish()
    assert job.start(1) == [{"kind": "over", "code": 0, "id": 1}]
    assert not job.clients[2].changed
    assert job.coordinator.finished


def one_joins_the_other(job):
    """The answer for which rank 1's replacement waits, while rank 0 trains."""
    job.start(0, 1)
    job.clients[1].close()
    job.notices[0].wait(5)
    job.quorum([0], 0)
    job.start(1)
    return job.ask(job.clients[1].next_quorum, None)


def test_nobody_waits_for_the_vote_of_one_whose_script_is_over(ranks):
    job = ranks(world_size=2)
    job.start(0, 1)
    job.finish(0, 1)
    vote = job.ask(job.clients[0].commit, 1, True)
    time.sleep(0.1)
    job.clients[1].close()
    assert vote.result(5)["commit"] is False
    assert [reply["order"] for reply in job.quorum([0], 0)] == [[0]]
    job.coordinator.lose(1)  # its supervisor is the last to see it; the others have gone on
    assert job.commit(1, 0) == [True]


def test_after_the_end_those_who_are_left_may_train_again(ranks):
    job = ranks(world_size=3)
    job.start(0, 1, 2)
    job.finish(0, 1, 2)
    assert job.commit(1, 0, 1, 2) == [True] * 3
    job.clients[1].close()
    job.coordinator.lose(1)
    assert job.notices[0].wait(5)
    assert job.commit(2, 0, 2) == [False] * 2
    assert [reply["order"] for reply in job.quorum([1], 0, 2)] == [[0, 2]] * 2
    assert job.commit(2, 0, 2) == [True] * 2


def test_who_comes_to_the_end_of_a_fit_hears_that_it_is_over(ranks):
    job = ranks(world_size=2)
    joins = one_joins_the_other(job)
    assert job.commit(1, 0) == [True]  # the last step, or the end: the one that joins is not waited for
    job.finish(0)
    assert joins.result(5)["kind"] == "over"


def test_nobody_is_left_who_has_the_state(ranks):
    job = ranks(world_size=2)
    joins = one_joins_the_other(job)
    time.sleep(0.1)
    job.clients[0].close()
    assert joins.result(5)["kind"] == "alone"


@pytest.mark.parametrize(
    "said", [b"", b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x02{}", b"\x00\x00\x00\x03[1]"]
)
def test_strangers_are_not_heard(ranks, said):
    job = ranks(world_size=1)
    with socket.create_connection(("127.0.0.1", job.coordinator.port)) as stranger:
        stranger.sendall(said)
        stranger.settimeout(5)
        with contextlib.suppress(OSError):  # the connection has been ended already, and what it said was not read
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b""
    with socket.create_connection(("127.0.0.1", job.coordinator.port)) as stranger:
        wire.send(stranger, {"token": "another", "rank": 0, "info": {}})
        assert wire.receive(stranger) is None
    assert job.start(0)[0]["kind"] == "first"


def test_a_job_begins_with_fewer_ranks_and_goes_on_with_those_that_have_come(ranks):
    """With a rejoin timeout too, which is for ranks that are lost: nobody waits for a host that has not come yet."""
    job = ranks(world_size=4, to_begin=2, rejoin_timeout=60)
    first, _ = job.start(0, 1)
    assert (first["kind"], first["order"]) == ("first", [0, 1])
    assert job.ask(job.join(2).start).result(5)["kind"] == "join"
    joining = job.ask(job.clients[2].next_quorum, None)
    assert job.coordinator_hears_of(2)
    decisions = [job.ask(job.clients[rank].commit, 1, True) for rank in (0, 1)]
    assert [one.result(5)["change"] for one in decisions] == [True, True]
    assert [reply["order"] for reply in job.quorum([1], 0, 1)] == [[0, 1, 2]] * 2
    assert joining.result(5)["sources"] == [0, 1]


def test_ranks_leave_by_plan_at_the_end_of_a_step(ranks):
    job = ranks(world_size=3)
    job.start(0, 1, 2)
    job.coordinator.leave([2])
    decisions = [job.ask(job.clients[rank].commit, 1, True).result for rank in (0, 1, 2)]
    assert [one(5) for one in decisions] == [{"id": 2, "commit": True, "change": True, "differ": False}] * 3
    replies = job.quorum([1], 0, 1, 2)
    assert [reply["kind"] for reply in replies] == ["quorum", "quorum", "leave"]
    assert replies[0]["order"] == [0, 1]
    assert not any(notice.is_set() for notice in job.notices.values())
    job.coordinator.leave([0, 1])  # somebody must stay
    assert job.commit(2, 0, 1) == [True, True]


def test_ranks_whose_script_cannot_recover_are_started_again_and_none_is_lost(ranks):
    job, said = ranks(world_size=2, rejoin_timeout=0.0), list[str]()
    job.coordinator._report = said.append
    job.start(0, 1)
    first = job.ask(job.clients[0].leave_for_restarts)
    time.sleep(0.05)
    assert not first.done()
    for asked in (first, job.ask(job.clients[1].leave_for_restarts)):
        asked.result(5)
    for client in list(job.clients.values()):
        client.close()
    assert [reply["kind"] for reply in job.start(0, 1)] == ["first", "first"]
    assert said == []


def test_one_that_is_lost_meanwhile_is_not_waited_for(ranks):
    job = ranks(world_size=2, rejoin_timeout=0.0)
    job.start(0, 1)
    asked = job.ask(job.clients[0].leave_for_restarts)
    time.sleep(0.05)
    job.clients[1].close()
    asked.result(5)
