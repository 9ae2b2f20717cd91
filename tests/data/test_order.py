# SPDX-License-Identifier: Apache-2.0
"""The order without a table: a permutation of any size, indistinguishable from numpy's by the tests that tell bad ones."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sagemaker.data.order import Order, permuted


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 1500),
    block=st.integers(1, 200),
    window=st.none() | st.integers(1, 12),
    seed=st.integers(0, 1 << 40),
    epoch=st.integers(0, 1 << 20),
)
def test_each_sample_stands_at_one_position(size, block, window, seed, epoch):
    order = Order(size, seed, epoch, block, window)
    whole = order(np.arange(size))
    assert np.array_equal(np.sort(whole), np.arange(size))
    some = np.random.default_rng(seed).permutation(size)[:8]
    assert np.array_equal(order(some), whole[some])  # a function of the position alone


@pytest.mark.parametrize(("block", "window"), [(1, None), (4096, 64)])
def test_ten_thousand_million_samples_take_no_memory(block, window):
    order = Order(10**10, 3, 1, block, window)
    begin = 10**10 - 50_000
    tracemalloc.start()
    found = order(np.arange(begin, 10**10))
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert len(np.unique(found)) == 50_000
    assert 0 <= found.min() <= found.max() < 10**10


def test_a_window_reads_its_blocks_and_no_others():
    size, block, window = 100_003, 64, 16
    order = Order(size, 5, 2, block, window)
    blocks = order(np.arange(size)) // block
    visits = [np.flatnonzero(blocks == number) for number in range(order.blocks)]
    assert max(places[-1] - places[0] for places in visits) < window * block  # once, and never again in the epoch
    mixed = [len(np.unique(blocks[begin : begin + 64])) for begin in range(0, size - 64, 6400)]
    assert min(mixed) > window // 2


def test_seeds_and_epochs_give_other_orders():
    positions = np.arange(1000)
    orders = {Order(5000, seed, epoch, 8, 20)(positions).tobytes() for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100


def figures(rows):
    """Of permutations ``[many, size]``: how often a value is at its own place, rises, and the distances of neighbors."""
    size = rows.shape[1]
    fixed, rises = (rows == np.arange(size)).sum(1), (rows[:, 1:] > rows[:, :-1]).sum(1)
    distances = np.bincount(((rows[:, 1:] - rows[:, :-1]) % size).ravel(), minlength=size)[1:]
    expected = distances.sum() / (size - 1)
    places = np.array([np.bincount(column, minlength=size) for column in rows.T])
    each = len(rows) / size
    return {
        "fixed": fixed.mean(),
        "variance of fixed": fixed.var(),
        "rises": rises.mean() / ((size - 1) / 2),
        "variance of rises": rises.var() / ((size + 1) / 12),
        "distances": _z((((distances - expected) ** 2) / expected).sum(), size - 2),
        "places": _z(((places - each) ** 2 / each).sum(), (size - 1) ** 2),
        "serial": np.corrcoef(rows[:, :-1].ravel(), rows[:, 1:].ravel())[0, 1] * math.sqrt(rows.size),
    }


def _z(chi_square, freedom):
    return (chi_square - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("size", [24, 300, 1009])
def test_statistics_are_those_of_numpy_s_permutations(size):
    many = 1500
    random = np.random.default_rng(7)
    ours = figures(np.array([permuted(np.arange(size), size, int(key)) for key in random.integers(0, 1 << 62, many)]))
    theirs = figures(np.array([random.permutation(size) for _ in range(many)]))
    for found in (ours, theirs):
        assert abs(found["fixed"] - 1) < 4 / math.sqrt(many)
        assert 0.8 < found["variance of fixed"] < 1.2
        assert abs(found["rises"] - 1) < 0.01
        assert 0.85 < found["variance of rises"] < 1.15
        assert abs(found["distances"]) < 4.5
        assert abs(found["places"]) < 4.5
        assert abs(found["serial"] + math.sqrt(many / size)) < 4.5  # of a permutation it is a little below zero


def test_epochs_are_not_related():
    size = 20_000
    rows = np.array([Order(size, 1, epoch, 64, 32)(np.arange(size)) for epoch in range(20)])
    correlations = np.corrcoef(rows)[np.triu_indices(20, 1)]
    blockwise = math.sqrt(
        size / 64
    )  # within a window all samples are near each other: as many places as there are blocks
    assert np.abs(correlations).max() < 5 / blockwise


def test_numbers_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="window=0 was given.*HINT"):
        Order(10, window=0)
