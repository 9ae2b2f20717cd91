# SPDX-License-Identifier: Apache-2.0
"""Which objects in attributes are looked into."""

import argparse
import random
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace

import pytest
import torch

from lightning_sagemaker.checkpoint.records import records_in


class Meter:
    def __init__(self, value=0.0):
        self.value = value


@dataclass
class Best:
    score: float = 0.0
    names: list = field(default_factory=list)


class Rows(list):
    def __init__(self):
        super().__init__()
        self.count = 0


class Data(torch.utils.data.Dataset):
    pass


class Kind(Enum):
    ONE = 1


class Saved(Meter):
    def state_dict(self):
        return {}


def names_in(value):
    return [name for name, _ in records_in("x", value, lambda one: isinstance(one, (float, list)))]


def test_objects_with_plain_attributes_are_found_in_containers_too():
    assert names_in(Meter()) == names_in(Best()) == ["x"]
    assert names_in({"loss": Meter(), "n": 1.0}) == ["x.loss"]
    assert names_in([1.0, Meter(), Best()]) == ["x.1", "x.2"]
    assert names_in([[Meter()]]) == []


@pytest.mark.parametrize(
    "value",
    [
        *(1.0, None, Meter, Meter(object()), Rows(), Data(), Kind.ONE, Saved(), torch.nn.Linear(1, 1), torch.ones(1)),
        *(random.Random(1), SimpleNamespace(a=1.0), argparse.Namespace(a=1.0), [Meter()] * 101, len, Meter().__init__),
    ],
    ids=lambda one: type(one).__name__,
)
def test_others_are_not(value):
    assert names_in(value) == []
