# SPDX-License-Identifier: Apache-2.0
"""Each stage is sent the tensors of a batch that it reads, and computes the same."""

from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import fork_ranks, read_ranks

WORKER = Path(__file__).with_name("inputs_worker.py")
BATCH, SIDE = 8, 48
IMAGES, MASK, LABELS, NOTES, SCALE = BATCH * SIDE * SIDE * 4, BATCH * 4, BATCH * 8, BATCH * 400, 8
BESIDE = 200
"""A step's header, and what small tensors are padded with."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    fork_ranks(WORKER, folder, processes=3)
    return read_ranks(folder)


def test_losses_and_metrics_are_those_of_whole_batches(ranks):
    for found in ranks:
        assert len(found["needed"]["losses"]) == 7
        assert found["needed"]["losses"] == found["whole"]["losses"]
        assert found["needed"]["metrics"] == found["whole"]["metrics"]
        assert {"accuracy", "brightness"} <= found["needed"]["metrics"].keys()


def test_only_what_stages_read_is_sent(ranks):
    """From the third step on: the first finds out what is read, in the second the others tell the first process."""
    steps = {
        name: [after - before for before, after in pairwise(ranks[0][name]["bytes"])] for name in ("needed", "whole")
    }
    everything = 2 * (IMAGES + MASK + LABELS + NOTES + SCALE)
    middle, last = MASK + SCALE, MASK + LABELS + SCALE
    for sent in steps["whole"][1:5]:
        assert everything <= sent < everything + BESIDE
    for sent in steps["needed"][1:5]:
        assert middle + last <= sent < middle + last + BESIDE
    assert not any(ranks[1]["needed"]["bytes"])


def test_a_later_read_is_one_error_on_all_ranks(ranks):
    for found in ranks:
        assert "that it did not read in the first step of this kind, so it was not sent. HINT" in found["late"]
        assert "whole_batches=True" in found["late"]
        assert "noted" in found["late but whole"]
