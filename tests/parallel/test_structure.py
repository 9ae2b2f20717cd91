# SPDX-License-Identifier: Apache-2.0
"""Values are taken apart and put together without a change, and equal structures are recognized."""

from collections import OrderedDict, UserDict
from typing import NamedTuple

import pytest
import torch

from lightning_sagemaker.parallel.structure import same, take_apart


class Pair(NamedTuple):
    left: object
    right: object


def structure_of(value):
    return take_apart(value)[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"ids": torch.zeros(2, 3), "text": ["a", "b"], "n": 3},
        lambda: [torch.ones(1), (torch.ones(2), None)],
        lambda: Pair(torch.ones(1), 0.5),
        lambda: OrderedDict(a=torch.ones(1)),
        lambda: UserDict(a=torch.ones(1)),
    ],
)
def test_a_structure_is_known_again_whatever_the_tensors(make):
    one, other = make(), make()
    assert same(structure_of(one), structure_of(other))
    assert type(structure_of(one)) is type(one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"a": True}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ([torch.ones(1)], [torch.ones(1), torch.ones(1)]),
        ([torch.ones(1), "x"], ["x", torch.ones(1)]),
        ((1,), [1]),
        ({"a": object()}, {"a": object()}),
    ],
)
def test_what_differs_is_new(one, other):
    assert not same(structure_of(one), structure_of(other))


def test_floats_are_no_part_of_the_structure():
    assert same(structure_of({"a": 0.25, "b": [1.5]}), structure_of({"a": float("nan"), "b": [-2.0]}))
    assert take_apart({"a": 0.25, "b": [1.5]})[1][-1].tolist() == [0.25, 1.5]
