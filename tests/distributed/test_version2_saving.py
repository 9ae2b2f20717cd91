# SPDX-License-Identifier: Apache-2.0
"""A training with ``torch.sagemaker`` goes on from the checkpoints that AWS's guide describes."""

from pathlib import Path

import pytest

from tests.conftest import fork_ranks, read_ranks
from tests.skips import needs_shards

WORKER = Path(__file__).with_name("version2_saving_worker.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saving")
    fork_ranks(WORKER, folder, processes=4)
    return read_ranks(folder)


@needs_shards
@pytest.mark.parametrize("degree", [2, 0])
@pytest.mark.parametrize("original", [True, False], ids=["original", "flat"])
def test_it_goes_on_from_each_kind(ranks, degree, original):
    """Four processes: two replicas of two shards, and one of four."""
    for rank in ranks:
        found = rank[f"{degree}-{original}"]
        assert found["replicas"] == {"difference": 0.0, "step": 3}
        assert found["one"]["difference"] == 0.0


@needs_shards
def test_states_are_sharded_as_the_model(ranks):
    """Of 10 rows; before, FSDP took replicas for shards, and each process kept all rows where there is one replica."""
    assert [rank["2-True"]["one"]["share"] for rank in ranks] == [0.5, 0.5, 0.5, 0.5]
    assert [rank["0-True"]["one"]["share"] for rank in ranks] == [0.3, 0.3, 0.3, 0.1]
