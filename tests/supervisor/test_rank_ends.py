# SPDX-License-Identifier: Apache-2.0
"""A table: how a rank's process has exited and how far the job was, what its supervisor does and logs, what it counts."""

import signal

import pytest

from lightning_sagemaker.recovery import wire
from lightning_sagemaker.supervisor.rank_ends import WITH_ANOTHER, Action, Decision, RankEnd, decide

KILLED = -signal.SIGKILL
TABLE = {
    "in the training": ((KILLED, {"step": 5}), (Action.START, "signal 9; starting a replacement", 5)),
    "with an error": ((1, {"step": 5}), (Action.START, "exit code 1; starting a replacement", 5)),
    "twice after a step": ((KILLED, {"step": 5, "deaths": {5: 1}}), (Action.START, "starting a replacement", 5)),
    "three times after it": (
        (KILLED, {"step": 5, "deaths": {5: 2}}),
        (Action.LEAVE_OUT, "not replaced: it died 3 times after step 5", 5),
    ),
    "three times, with progress": ((KILLED, {"step": 6, "deaths": {5: 2}}), (Action.START, "a replacement", 6)),
    "too often": (
        (KILLED, {"step": 6, "deaths": {4: 1, 5: 1}, "max_restarts": 2}),
        (Action.LEAVE_OUT, "--max-restarts is 2", 6),
    ),
    "killed by the coordinator": (
        (KILLED, {"step": 5, "deaths": {5: 2}, "is_killed": True}),
        (Action.START, "signal 9; starting a replacement", WITH_ANOTHER),
    ),
    "after the first fit": ((1, {"step": 9, "finished": True}), (Action.LEAVE_OUT, "after the first fit", None)),
    "told to exit": ((1, {"step": 9, "ended": True}), (Action.LEAVE_OUT, "", None)),
    "without a network": ((1, {"step": 5, "is_reachable": False}), (Action.START_LATER, "once the coordinator", None)),
    "a wrong script": ((1, {"has_started": False}), (Action.END_HOST, "before the first step, and is not replaced", 0)),
    "wrong when all have started": ((1, {}), (Action.LEAVE_OUT, "before the first step, and is not replaced", 0)),
    "killed before the first step": ((KILLED, {}), (Action.START, "signal 9; starting a replacement", 0)),
    "killed thrice before it": ((KILLED, {"deaths": {0: 2}}), (Action.LEAVE_OUT, "3 times after step 0", 0)),
    "another lost before it": ((wire.RESTART, {}), (Action.START, "", WITH_ANOTHER)),
    "another lost, a second one left out": (
        (wire.RESTART, {"is_only_one": False}),
        (Action.END_JOB, "before the first step", WITH_ANOTHER),
    ),
    "the code of a restart, by chance": (
        (wire.RESTART, {"step": 5}),
        (Action.START, "exit code 75; starting a replacement", 5),
    ),
    "models in parts, another lost": (
        (wire.RESTART, {"step": 5, "together": True, "is_only_one": False}),
        (Action.START, "", WITH_ANOTHER),
    ),
    "models in parts, itself lost": ((KILLED, {"step": 5, "together": True}), (Action.START, "a replacement", 5)),
    "models in parts, lost thrice": (
        (KILLED, {"step": 5, "together": True, "deaths": {5: 2}}),
        (Action.END_JOB, "3 times after step 5", 5),
    ),
    "models in parts, wrong": (
        (1, {"together": True, "has_started": False}),
        (Action.END_JOB, "before the first step", 0),
    ),
    "replicas, another lost": ((wire.RESTART, {"step": 5, "replica": 2}), (Action.START, "", WITH_ANOTHER)),
    "replicas, wrong": ((1, {"replica": 2}), (Action.END_JOB, "before the first step", 0)),
    "replicas, lost thrice in the training": (
        (KILLED, {"step": 5, "replica": 2, "deaths": {5: 2}}),
        (Action.LEAVE_OUT, "3 times after step 5", 5),
    ),
    "wrong after a restart of all": ((1, {"has_followed": True}), (Action.END_JOB, "before the first step", 0)),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_follows_the_end_of_a_rank(name):
    (code, facts), (action, words, death) = TABLE[name]
    decision = decide(RankEnd(3, code, **facts))
    assert (decision.action, decision.death) == (action, death)
    assert words in decision.sentence
    assert decision.sentence.startswith("rank 3 ended with ") if words else decision.sentence == ""


def test_a_decision_changes_nothing():
    deaths = {5: 1}
    end = RankEnd(0, KILLED, step=5, deaths=deaths)
    assert (
        decide(end) == decide(end) == Decision(Action.START, "rank 0 ended with signal 9; starting a replacement.", 5)
    )
    assert deaths == {5: 1}
