# SPDX-License-Identifier: Apache-2.0
"""Stages and shared matrices stop together, and go on where they ended."""

from pathlib import Path

import pytest

from tests.conftest import read_ranks, torchrun

WORKER = Path(__file__).with_name("interrupted_worker.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted")
    torchrun(WORKER, folder, processes=2)
    return read_ranks(folder)


@pytest.mark.parametrize("layout", ["stages", "stages, parts", "tensor", "tensor, parts"])
def test_both_ranks_stop_and_go_on(ranks, layout):
    for found in (rank[layout] for rank in ranks):
        assert found["code"] == 143
        assert 3 < len(found["first"]) < 32
        assert found["first"] + found["second"] == pytest.approx(found["calm"], abs=1e-6)


def test_streams_of_different_length_end_together(ranks):
    assert [rank["uneven"] for rank in ranks] == [{"steps": 6, "cut_short": 0}, {"steps": 6, "cut_short": 2}]
