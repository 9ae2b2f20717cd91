# SPDX-License-Identifier: Apache-2.0
"""A script's own random number generators are found wherever its objects and its code have them, at little cost."""

import functools
import random
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lightning_sagemaker.checkpoint.own_generators import OwnGenerators

NOISE = np.random.default_rng(0)
UNUSED = np.random.default_rng(1)
SHARED = {"list": [SimpleNamespace(rng=random.Random(0))]}


def jitter(value):
    return value + NOISE.normal()


class Base:
    order = random.Random(3)

    def draws(self):
        return [jitter(value) for value in (1.0, 2.0)]


class Slotted:
    __slots__ = ("rng",)

    def __init__(self):
        self.rng = np.random.RandomState(0)


class Raises:
    """As pydantic's stand-in for a validator that is not built yet: it has no ``__dict__``."""

    __slots__ = ("rng",)

    def __getattr__(self, name):
        raise RuntimeError("a script's own code")


class Calls(dict):
    def __getitem__(self, key):
        raise AssertionError("a script's own code")


def nested(depth):
    value = SimpleNamespace(rng=torch.Generator())
    for number in range(depth):
        value = [value] if number % 2 else SimpleNamespace(inner=value)
    return value


def closure():
    rng = torch.Generator()
    return lambda: torch.rand((), generator=rng)


def method():
    return SimpleNamespace(call=Slotted().__init__)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: nested(50), 1),
        (Slotted, 1),
        (Raises, 0),
        (closure, 1),
        (method, 1),
        (lambda: functools.partial(max, key=np.random.default_rng()), 1),
        (lambda: deque([torch.nn.Sequential(nested(3).inner and torch.nn.Linear(1, 1))]), 0),
        (lambda: (jitter,), 1),
        (Base, 2),
        (lambda: lambda: SHARED["list"], 1),
        (lambda: Calls(a=random.Random()), 0),
        (random.SystemRandom, 0),
        (lambda: [torch.default_generator, np.random.mtrand._rand], 0),
    ],
)
def test_finds(make, found):
    value = make()
    own = OwnGenerators(lambda: [("root", value)])
    assert len(own.take()) == found


def test_states_are_those_of_the_object_that_is_there_now():
    value = SimpleNamespace(rng=np.random.default_rng(0), other=random.Random(0), third=np.random.RandomState(0))
    own = OwnGenerators(lambda: [("root", value)])
    own.take()
    value.rng = np.random.default_rng(7)
    state = own.take()
    drawn = value.rng.random(), value.other.random(), value.third.rand()
    value.rng = np.random.default_rng(8)
    own.put(state)
    assert drawn == (value.rng.random(), value.other.random(), value.third.rand())
    value.rng, value.other = random.Random(0), np.random.RandomState(0)  # the script has changed
    own.put(state)


def test_a_generator_that_is_made_late_is_found():
    value = SimpleNamespace(transform=SimpleNamespace(rng=None))
    own = OwnGenerators(lambda: [("root", value)])
    assert own.take() == {}
    value.transform.rng = torch.Generator()
    own._ended = -np.inf  # some time has passed
    assert [*own.take()] == ["root.transform.rng"]


def test_circles_and_large_data_cost_little():
    large = {str(number): [number] * 3 for number in range(100_000)}
    value = SimpleNamespace(
        numbers=[*range(1_000_000)], records=[{"a": 1, "b": [1, 2]} for _ in range(100_000)], large=large,
        array=np.zeros((1000, 1000)), tensors=[torch.zeros(3)] * 1000, rng=torch.Generator(),
    )  # fmt: skip
    value.itself = value
    own = OwnGenerators(lambda: [("root", value)])
    own.look()
    assert [*own.take()] == ["root.rng"]
    assert own._took < 0.2
