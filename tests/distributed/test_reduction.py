# SPDX-License-Identifier: Apache-2.0
"""Gradients reduced in other ways than by DDP's all-reduce are those of DDP's all-reduce, up to what each way says."""

import math
from pathlib import Path

import pytest

from tests.conftest import Runs, fork_ranks, read_ranks
from tests.skips import only_cpu

WORKER = Path(__file__).with_name("reduction_worker.py")
STRATEGIES_WORKER = Path(__file__).with_name("reduction_strategies_worker.py")
BF16, FP16 = 2**-8, 2**-11
"""Largest relative error of one rounding."""


@pytest.fixture(scope="module")
def launches(tmp_path_factory):
    def launch(topology):
        hosts, processes = topology
        folder = tmp_path_factory.mktemp(f"reduction-{hosts}x{processes}")
        fork_ranks(WORKER, folder, processes, processes=hosts * processes)
        return read_ranks(folder)

    return Runs(launch)


@pytest.fixture(params=[(2, 2), (3, 1), (1, 2)], ids=["2 hosts x 2", "3 hosts x 1", "1 host x 2"])
def topology(request):
    return request.param


@pytest.fixture
def ranks(topology, launches):
    return launches[topology]


def test_vectors_are_reduced_to_their_mean(ranks):
    """Numbers are rounded on their way out, and on their way back; bounds are shares of the mean absolute value."""
    bounds = {"None": 2**-22, "bf16": 2 * BF16, "fp16": 2 * FP16}
    for name, found in ranks[0]["vectors"].items():
        _, compression, dtype = name.split(", ")
        bound = (
            {"torch.float64": 2**-50}.get(dtype, bounds[compression]) if compression == "None" else bounds[compression]
        )
        if (
            dtype == "torch.bfloat16"
        ):  # numbers of 16 bits are sent as they are, and rounded after each of up to three sums
            bound = 3 * BF16
        assert found["worst"] <= bound, name


def test_all_ranks_have_the_same_bits(ranks):
    for case in ("vectors", "ways", "resumed"):
        for name, found in ranks[0][case].items():
            assert all(rank[case][name]["bits"] == found["bits"] for rank in ranks), name


def test_a_number_does_not_depend_on_where_it_stands(ranks):
    assert all(rank["placed"] for rank in ranks)


@pytest.mark.parametrize("situation", ["plain", "accumulated", "unused", "static", "views", "compiled"])
def test_training_is_ddps(ranks, topology, situation):
    found = {name: way for name, way in ranks[0]["ways"].items() if name.endswith(situation)}
    expected = found[f"ddp, {situation}"]
    exact = found[f"hierarchical, None, {situation}"]
    assert exact["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    if topology != (2, 2):  # there is nothing within hosts, or nothing between them
        assert exact["bits"] == expected["bits"]
    for name, way in found.items():
        if "bf16" in name or "fp16" in name:
            assert way["losses"] == pytest.approx(expected["losses"], rel=2e-3), name
            assert way["bits"] != expected["bits"], name
        elif "powersgd" in name:
            assert all(math.isfinite(loss) for loss in way["losses"])
            assert way["losses"][:4] == pytest.approx(expected["losses"][:4], rel=1e-5)  # exact until powersgd_start
            assert way["losses"] != pytest.approx(expected["losses"], rel=1e-5)
            assert way["losses"][-1] < way["losses"][0]


@pytest.mark.parametrize("way", ["hierarchical, None", "flat, bf16"])
def test_a_resumed_run_is_the_same_bit_for_bit(ranks, topology, way):
    found = ranks[0]["resumed"]
    assert found[f"{way}, warm"]["done"]
    assert found[f"{way}, warm"]["same"]
    if "bf16" in way or topology != (3, 1):  # where DDP's own all-reduce is left, the buckets must be the same
        assert found[f"{way}, cold"]["same"]


def test_powersgd_goes_on_with_its_errors(ranks):
    found = ranks[0]["resumed"]
    assert found["flat, powersgd, warm"]["done"]
    for start in ("warm", "cold"):
        losses, calm = found[f"flat, powersgd, {start}"]["losses"], found[f"flat, powersgd, {start}"]["calm"]
        assert losses[0] == pytest.approx(calm[0], rel=1e-6)
        assert losses == pytest.approx(calm, rel=0.25)


def test_threads_end_with_what_they_work_for(ranks):
    assert all(rank["threads"] == 0 for rank in ranks)


def test_what_powersgd_leaves_out_comes_later(ranks):
    """Without error feedback 0.97 would be left of a random matrix of 64 x 512 by rank 2."""
    assert ranks[0]["carried"] < 0.6


def test_the_fastest_is_found_by_all_and_once(ranks):
    found = [rank["measured"] for rank in ranks]
    assert all(one["plan"] == found[0]["plan"] == one["again"] for one in found)
    assert "Measured on" in found[0]["reason"]
    assert all(one["untouched"] for one in found)
    assert all(one["cached"] < 0.1 for one in found)
    assert all(one["told"] == {"algorithm": "flat", "compression": "bf16", "piece_bytes": 12345} for one in found)


def test_why_nothing_is_within_hosts_first(ranks, topology):
    expected = {
        (2, 2): "As configured, with 2 hosts x 2 processes.",
        (3, 1): "Not hierarchical, as each host has one process.",
        (1, 2): "Not hierarchical, as there is one host.",
    }
    assert ranks[0]["reason"] == expected[topology]


@pytest.fixture(scope="module")
def strategies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reduction-strategies")
    fork_ranks(STRATEGIES_WORKER, folder, processes=4)
    return read_ranks(folder)


@only_cpu
def test_the_default_is_ddp_to_the_last_bit(strategies):
    found = strategies[0]
    assert found["default"]["bits"] == found["ddp"]["bits"]
    assert found["default"]["hooks"] == 0
    assert found["default"]["said"] == found["fabric, default"]["said"] == []


@only_cpu
@pytest.mark.parametrize(
    ("way", "peer", "within"),
    [
        ("hierarchical", "ddp", 1e-5),
        ("hierarchical, accumulated", "ddp, accumulated", 1e-5),
        ("bf16", "ddp", 1e-2),
        ("fabric", "fabric, default", 1e-5),
    ],
)
def test_strategies_reduce_as_they_are_told(strategies, way, peer, within):
    found = strategies[0]
    assert found[way]["losses"] == pytest.approx(found[peer]["losses"], rel=within)
    assert len({rank[way]["bits"] for rank in strategies}) == 1
    assert found[way].get("hooks", 1) == 1


@only_cpu
def test_rank_zero_says_once_what_is_done(strategies):
    for way, words in (("hierarchical", "hierarchical, in chunks of 2 MiB. As configured, with 2 hosts x 2 processes."),
                       ("bf16", "hierarchical, sent as bf16"), ("auto", "Measured on")):  # fmt: skip
        (said,) = strategies[0][way]["said"]
        assert words in said
        assert not any(rank[way]["said"] for rank in strategies[1:])


@only_cpu
def test_a_resumed_run_does_not_measure_again(strategies):
    kept = strategies[0]["auto"]["kept"]
    assert kept["topology"] == "2 hosts x 2 processes"
    (said,) = strategies[0]["auto, resumed"]["said"]
    assert "before this run was resumed" in said


@only_cpu
def test_a_checkpoint_has_powersgds_errors_by_parameter(strategies):
    kept = strategies[0]["powersgd, first"]["kept"]["powersgd"]
    assert kept == {"steps": 8, "errors": [1024, 64, 4096, 64, 64, 1]}
    calm, resumed = strategies[0]["powersgd"]["losses"], strategies[0]["powersgd, resumed"]["losses"]
    assert len(resumed) == 4
    assert all(math.isfinite(loss) for loss in resumed)
    assert len(calm) == 12
