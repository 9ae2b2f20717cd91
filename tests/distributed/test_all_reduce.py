# SPDX-License-Identifier: Apache-2.0
"""Scripts on the shim whose sums are reduced as a variable says: the same sums, up to what each way says."""

from pathlib import Path

import pytest

from tests.conftest import fork_ranks, read_ranks

WORKER = Path(__file__).with_name("all_reduce_worker.py")
BF16, FP16 = 2**-8, 2**-11
"""Largest relative error of one rounding."""
WAYS = ("hierarchical", "hierarchical bf16", "flat fp16", "auto")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Two hosts of two processes."""
    folder = tmp_path_factory.mktemp("sums")
    fork_ranks(WORKER, folder, processes=4)
    return read_ranks(folder)


@pytest.mark.parametrize(("way", "bound"), [("plain", 2**-22), ("hierarchical", 2**-22), ("auto", 2**-22)])
def test_exact_ways_are_exact(ranks, way, bound):
    """Sums of whole numbers have the same bits; others differ by the order in which they are added."""
    for found in (rank[way] for rank in ranks):
        assert found["whole"]
        assert found["error"] <= bound
        assert found["old is new"]
        assert found["gradients"] == pytest.approx(ranks[0]["plain"]["gradients"], rel=1e-6)
        assert found["numbers"] == pytest.approx(ranks[0]["plain"]["numbers"], rel=1e-4, abs=1e-9)


@pytest.mark.parametrize(("way", "bound"), [("hierarchical bf16", 2 * BF16), ("flat fp16", 2 * FP16)])
def test_compressed_ones_are_rounded_twice(ranks, way, bound):
    for found in (rank[way] for rank in ranks):
        assert 2**-22 < found["error"] <= bound
        assert found["gradients"] == pytest.approx(ranks[0]["plain"]["gradients"], rel=2e-3)
        assert found["gradient bits"] != ranks[0]["plain"]["gradient bits"]


@pytest.mark.parametrize("way", WAYS)
def test_all_ranks_have_the_same_bits_and_both_wrappers_the_same_gradients(ranks, way):
    for found in (rank[way] for rank in ranks):
        assert found["bits"] == ranks[0][way]["bits"]
        assert found["gradient bits"] == ranks[0][way]["gradient bits"]
        assert found["old gradients"] == found["gradients"]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_small_or_no_sum_is_as_always(ranks, way):
    for found in (rank[way] for rank in ranks):
        assert found["small"] == [4.0] * 3
        assert found["silent"]
        assert found["least"]


def test_it_is_said_once_on_rank_zero(ranks):
    assert ranks[0]["plain"]["lines"] == []
    (line,) = ranks[0]["hierarchical"]["lines"]
    assert "LIGHTNING_SAGEMAKER_REDUCTION=hierarchical: sums over all processes are hierarchical, in" in line
    assert "2 hosts x 2 processes" in line
    assert len(ranks[0]["auto"]["lines"]) == 1
    assert all(rank[way]["lines"] == [] for rank in ranks[1:] for way in WAYS)


def test_another_value_is_one_error_before_there_is_a_group(ranks):
    for found in ranks:
        assert found["wrong"] == (
            "LIGHTNING_SAGEMAKER_REDUCTION='tree' was set. HINT: set one of flat, hierarchical, auto, or unset it."
        )
        assert found["no group"]
