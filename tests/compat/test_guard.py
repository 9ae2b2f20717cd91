# SPDX-License-Identifier: Apache-2.0
"""Methods that are taken over, and what becomes of copies meanwhile."""

import copy
import io
import pickle

import pytest
import torch

from lightning_sagemaker._compat.guard import TakenOver


class Owner:
    def __init__(self):
        self.number, self.items = 3, [1]

    def add(self, more):
        return self.number + more


class SaysItself(Owner):
    """Says itself how it is written."""

    def __getstate__(self):
        return {**vars(self), "said": True}


class List(list):
    def add(self, more):
        return len(self) + more


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = [lambda value: pickle.loads(pickle.dumps(value)), copy.deepcopy, copy.copy, saved]


@pytest.mark.parametrize("copied", COPIES, ids=["pickle", "deepcopy", "copy", "torch.save"])
def test_a_copy_has_its_class_s_own_method(copied):
    taken, owner, waits = TakenOver(), Owner(), SaysItself()
    for one in (owner, waits):
        taken.take(one, "add", lambda add: lambda more: -add(more))
    for one in (owner, waits):
        found = copied(one)
        assert (one.add(1), found.add(1)) == (-4, 4)
        assert (type(found), found.number, found.items) == (type(one), 3, [1])
        found.number = 5
        assert found.add(1) == 6
    assert copied(waits).said
    taken.restore()
    assert owner.add(1) == copied(owner).add(1) == 4
    assert vars(owner) == {"number": 3, "items": [1]}


@pytest.mark.parametrize("copied", COPIES, ids=["pickle", "deepcopy", "copy", "torch.save"])
def test_what_a_copy_has_besides_attributes_stays(copied):
    taken, owner = TakenOver(), List([1, 2])
    taken.take(owner, "add", lambda add: lambda more: -add(more))
    assert (copied(owner), copied(owner).add(1)) == ([1, 2], 3)
    taken.restore()


def test_a_method_that_the_script_has_given_an_object_comes_back():
    owner, first, second = Owner(), TakenOver(), TakenOver()
    owner.add = own = lambda more: more
    first.take(owner, "add", lambda add: lambda more: -add(more))
    second.take(owner, "add", lambda add: lambda more: 10 + add(more))
    assert (owner.add(1), copy.copy(owner).add) == (9, own)
    first.restore()
    assert owner.add(1) == 11
    second.restore()
    assert owner.add is own


def test_a_method_that_the_script_has_put_over_ours_stays_and_no_longer_calls_ours():
    owner, taken = Owner(), TakenOver()
    taken.take(owner, "add", lambda add: lambda more: -add(more))
    owner.add = over = lambda more, add=owner.add: 100 + add(more)
    taken.restore()
    assert (owner.add is over, owner.add(1)) == (True, 104)
