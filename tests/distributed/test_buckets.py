# SPDX-License-Identifier: Apache-2.0
"""A resumed run reduces in the buckets of the run that was interrupted, so it is the same bit for bit."""

from itertools import chain
from pathlib import Path

import pytest
import torch

from lightning_sagemaker.collectives.buckets import bucket_layout, rebuild_as
from tests.conftest import Runs, fork_ranks, read_ranks

WORKER = Path(__file__).with_name("buckets_worker.py")


@pytest.fixture(scope="module")
def launches(tmp_path_factory):
    def launch(processes):
        folder = tmp_path_factory.mktemp(f"buckets-{processes}")
        fork_ranks(WORKER, folder, processes=processes)
        return read_ranks(folder)

    return Runs(launch)


@pytest.fixture(params=[3, pytest.param(4, marks=pytest.mark.slow)])
def ranks(request, launches):
    return launches[request.param]


def test_without_the_same_buckets_a_resumed_run_differs(ranks):
    assert not any(rank["cold"]["same"] for rank in ranks)
    assert len(ranks[0]["cold"]["layout"]) > 3
    assert sorted(chain.from_iterable(ranks[0]["cold"]["layout"])) == list(range(20))


@pytest.mark.parametrize("backend", ["gloo", "smddp_composite"])
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_with_them_it_is_the_same(ranks, backend, steps):
    for found in (rank[f"{backend}, {steps}"] for rank in ranks):
        assert found["same"]
        assert found["untouched"]
        assert found["later"]
        assert found["done"] is (steps > 0)
        assert (found["layout"] is None) is (steps == 0)


def test_gradients_that_are_views_of_buckets_are_the_same_too(ranks):
    for found in (rank["views"] for rank in ranks):
        assert found["same"]
        assert found["untouched"]


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("hook", "hook"),
        ("unused", "find_unused_parameters"),
        ("static", "static_graph"),
        ("sizes", "bucket sizes differ"),
        ("other", "are not of the 20 parameters"),
    ],
)
def test_where_it_cannot_be_done_rank_zero_says_why(ranks, case, why):
    assert not any(rank[case]["done"] for rank in ranks)
    (said,) = ranks[0][case]["said"]
    assert why in said
    assert not any(rank[case]["said"] for rank in ranks[1:])


def test_modules_without_the_wrapper_have_no_buckets():
    module = torch.nn.Linear(1, 1)
    assert bucket_layout(module) is None
    assert not rebuild_as(module, [[0, 1]])
