# SPDX-License-Identifier: Apache-2.0
"""Objects of a script whose own code raises whatever is asked of them are looked at without it."""

import types

import pytest
import torch

from lightning_sagemaker.checkpoint.records import is_of_script, records_in
from lightning_sagemaker.checkpoint.stateful import is_stateful
from lightning_sagemaker.checkpoint.static_view import answers, has_plain_dict, in_class, own_attributes


class Config(dict):
    """As in many scripts: ``config.lr``; another name is a KeyError, not an AttributeError."""

    __getattr__ = dict.__getitem__


class Slotted:
    __slots__ = ("empty",)

    def __getattr__(self, name):
        raise TypeError(name)


class Proxy:
    @property
    def __dict__(self):
        raise RuntimeError("not bound")


class Plain:
    def __init__(self):
        self.number = 1


@pytest.mark.parametrize("make", [Config, Slotted, Proxy, Plain])
def test_no_object_is_asked(make):
    one = make()
    assert not is_stateful(one)
    assert not answers(one, "param_groups")
    assert own_attributes(one) == ({"number": 1} if make is Plain else {})
    assert [*records_in("name", one, lambda _: True)] == ([("name", one)] if make is Plain else [])
    assert has_plain_dict(make) == (make in (Config, Plain))
    assert is_of_script(make) == (make is Plain)


def test_what_a_class_has():
    assert in_class(torch.nn.Linear, "state_dict")
    assert not in_class(Config, "state_dict")
    assert is_stateful(torch.nn.Linear(1, 1))
    assert not is_stateful(types.SimpleNamespace())
