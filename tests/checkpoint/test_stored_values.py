# SPDX-License-Identifier: Apache-2.0
"""Plain values in a checkpoint that is read as data."""

import io
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple

import numpy as np
import pytest
import torch

from lightning_sagemaker.checkpoint.stored_values import NotStored, is_large, loaded, of_another_number, stored

CPU = torch.device("cpu")
Point = namedtuple("Point", "x y")


def through_a_file(value):
    file = io.BytesIO()
    torch.save(stored(value), file)
    return loaded(torch.load(io.BytesIO(file.getvalue()), weights_only=True), CPU)


@pytest.mark.parametrize(
    "value",
    [
        1,
        0.5,
        True,
        None,
        "text",
        [1.0, 2.0],
        [(1, "a"), None, {"b": [2]}],
        {1, 2},
        (),
        OrderedDict(b=1, a=2),
        Counter("aab"),
        {("x", 1): {2: 3}},
        deque([1, 2], maxlen=3),
        np.float64(0.25),
        np.bool_(True),
    ],
    ids=repr,
)
def test_a_value_comes_back_as_it_was(value):
    found = through_a_file(value)
    assert found == value
    assert type(found) is type(value)
    assert getattr(found, "maxlen", None) == getattr(value, "maxlen", None)


def test_tensors_and_arrays_come_back_without_what_they_are_a_part_of():
    whole = torch.arange(1000.0)
    value = {
        "part": whole[3:5],
        "loss": torch.ones((), requires_grad=True) * 2,
        "array": np.arange(6).reshape(2, 3)[:, ::2],
    }
    entry = stored(value)
    whole.zero_()
    assert dict(entry[1])["part"][1].untyped_storage().nbytes() == 8
    found = through_a_file(value) | {"part": loaded(entry, CPU)["part"]}
    assert found["part"].tolist() == [3, 4]
    assert found["loss"] == 2
    assert not found["loss"].requires_grad
    assert found["array"].tolist() == [[0, 2], [3, 5]]


def test_a_functions_dict_comes_back_as_a_dict():
    assert through_a_file(defaultdict(list, a=[1])) == {"a": [1]}


@pytest.mark.parametrize("value", [object(), [len], Point(1, 2), np.array(["text"]), {"a": {1j}}])
def test_what_cannot_be_stored_is_said(value):
    with pytest.raises(NotStored):
        stored(value)


def test_many_tensors_are_large():
    assert not is_large(stored([torch.zeros(1000)] * 100))
    assert is_large(stored({"logits": [torch.zeros(1000)] * 5000}))


@pytest.mark.parametrize(("size", "expected"), [(1, [[0, 1, 2]]), (2, [[0, 2], [1]]), (4, [[0], [1], [2], []])])
def test_another_number_of_ranks_has_all_outputs_once(size, expected):
    then = [{"module": {"outputs": stored([rank]), "epoch": 3, "seen": 10 * rank}} for rank in range(3)]
    found = [of_another_number(then, rank, size)["module"] for rank in range(size)]
    assert [loaded(one["outputs"], CPU) for one in found] == expected
    assert {one["epoch"] for one in found} == {3}
    assert [one["seen"] for one in found] == [10 * (rank % 3) for rank in range(size)]


def test_a_list_that_all_had_is_each_ranks():
    then = [{"module": {"best": stored([1.0])}} for _ in range(2)]
    assert loaded(of_another_number(then, 0, 1)["module"]["best"], CPU) == [1.0]
