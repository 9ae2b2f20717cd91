# SPDX-License-Identifier: Apache-2.0
"""The messages of ranks and coordinator, and the sequence of them that docs/recovery.md shows."""

import logging
import re

import pytest

from lightning_sagemaker.recovery import wire
from tests.conftest import ROOT
from tests.supervisor.played_ranks import Ranks

SECTION = (ROOT / "docs/recovery.md").read_text().split("### The messages\n")[1].split("\n## ")[0]
DIAGRAM = re.findall(r"^rank ([\d ]+?) +(->|<-) coordinator  (.*?)(?:  .*)?$", SECTION, re.MULTILINE)
"""Ranks, direction and message of each line."""
LOGGED = re.compile(r"rank (\d+) (sends request|receives reply|receives notice)(?: \d+)?: (.*)")
_VALUES = re.compile(r"\w+=(?:\[[^\]]*\]|\S+)")


@pytest.mark.parametrize(
    "request_",
    [
        wire.Start(),
        wire.NextQuorum([3, 1], admits=False),
        wire.NextQuorum(None, admits=True),
        wire.Commit(2, 7, ok=True),
        wire.StepDone(4),
        wire.NeedAllRanks(2, "all_gather"),
        wire.LeaveForRestart(),
        wire.Finish(),
        wire.Heartbeat(),
    ],
    ids=str,
)
def test_a_request_arrives_as_it_was_sent(request_):
    assert wire.request_of({**wire.request_message(request_, 5)}) == (5, request_)


@pytest.mark.parametrize("notice", [wire.Welcome(2.5), wire.QuorumBroken(3), wire.Heartbeat()], ids=str)
def test_a_notice_is_told_from_an_answer(notice):
    assert wire.answer_of({**wire.notice_message(notice)}) == notice
    assert wire.answer_of({"id": 1, "kind": "join"})["kind"] is wire.Kind.JOIN
    assert wire.answer_of({"id": 1, "commit": True}) == {"id": 1, "commit": True}


@pytest.mark.parametrize("name", [*wire.REQUESTS, *wire.NOTICES, *wire.Kind, "commit=True"])
def test_each_kind_of_message_is_on_the_page(name):
    assert re.search(rf"\b{getattr(name, 'value', name)}\b", SECTION)


def test_the_page_shows_the_messages_that_are_sent(caplog):
    """A rank dies, the others go on, and a replacement joins."""
    caplog.set_level(logging.DEBUG, "lightning_sagemaker.recovery")
    job = Ranks(world_size=3)
    try:
        job.start(0, 1, 2)
        job.commit(1, 0, 1, 2)
        job.clients[1].close()
        assert job.notices[0].wait(5)
        assert job.notices[2].wait(5)
        job.quorum([1], 0, 2)
        job.commit(2, 0, 2)
        job.start(1)
        joins = job.ask(job.clients[1].next_quorum, None)
        assert job.coordinator_hears_of(1)
        job.commit(3, 0, 2)
        job.quorum([3], 0, 2)
        joins.result(5)
        job.commit(4, 0, 1, 2)
        job.finish(0, 1, 2)
    finally:
        job.close()
    logged = [found.groups() for record in caplog.records if (found := LOGGED.fullmatch(record.getMessage()))]
    for rank in "012":
        sent = [
            (kind == "sends request", text) for number, kind, text in logged if number == rank and "Welcome" not in text
        ]
        shown = [(arrow == "->", text) for ranks, arrow, text in DIAGRAM if rank in ranks]
        shown.append((False, ""))  # the answer to Finish says nothing
        assert len(sent) == len(shown)
        for (is_request, text), (arrow, wanted) in zip(sent, shown, strict=True):
            assert is_request == arrow
            assert text == wanted or (not is_request and set(_VALUES.findall(text)) >= set(_VALUES.findall(wanted)))
