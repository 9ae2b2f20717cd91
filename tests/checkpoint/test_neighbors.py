# SPDX-License-Identifier: Apache-2.0
"""A host that is lost has left its ranks' files in the memory of the next one."""

import json
from pathlib import Path

import pytest

from tests.conftest import fork_ranks

WORKER = Path(__file__).with_name("neighbors_worker.py")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("neighbors")
    fork_ranks(WORKER, folder, processes=4, timeout=60)
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize(
    ("hosts", "ranks"),
    [("two hosts", {"a": 2, "b": 2}), ("three hosts", {"a": 1, "b": 1, "c": 2}), ("unequal hosts", {"a": 3, "b": 1})],
)
def test_each_host_can_be_replaced(results, hosts, ranks):
    """The last step, which one rank could not write, is of no use."""
    assert results[hosts] == {host: {"step": 2, "fetched": lost, "whole": True} for host, lost in ranks.items()}


def test_the_only_host_cannot(results):
    assert results["one host"] == {"a": {"step": None, "fetched": None, "whole": True}}


def test_hosts_that_are_not_neighbors_can_be_replaced_together(results):
    recovered = {"step": 2, "fetched": 2, "whole": True}
    assert results["four hosts"] == {
        "ac": recovered,
        "bd": recovered,
        "ab": {**recovered, "step": None, "fetched": None},
    }


def test_a_rank_whose_memory_is_full_keeps_no_other_from_its_file(results):
    assert results["a full host"] == ["no space", "has it", "has it", "has it"]
