# SPDX-License-Identifier: Apache-2.0
"""Gradients that are averaged during the backward pass are those that are averaged after it, bit for bit."""

import json
from pathlib import Path

import pytest

from tests.conftest import fork_ranks

WORKER = Path(__file__).with_name("overlapped_worker.py")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("overlapped")
    fork_ranks(WORKER, folder, processes=2, timeout=60)
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize(
    "case", ["plain", "one rank lacks some", "adopted", "recomputed", "recomputed at last", "used late"]
)
def test_the_means_are_equal(results, case):
    assert results[case]["equal"]
    assert not any(results[case]["hooks"])  # once it is released


@pytest.mark.parametrize("case", ["plain", "adopted", "recomputed"])
def test_buckets_are_reduced_within_the_backward_pass(results, case):
    assert results[case]["early"] > 6 * 3  # of ten; in the first step of four none is


@pytest.mark.parametrize("case", ["plain", "one rank lacks some", "adopted", "recomputed"])
def test_all_steps_are_valid(results, case):
    assert results[case]["valid"] == [True] * 4


@pytest.mark.parametrize("case", ["recomputed at last", "used late"])
def test_a_gradient_that_comes_once_more_than_before_makes_its_step_invalid_and_no_later_one(results, case):
    assert results[case]["valid"] == [True, True, False, True]


def test_gradients_are_the_scripts_to_keep(results):
    assert all(results["kept"]["strides"])
    assert all(results["kept"]["kept"])
