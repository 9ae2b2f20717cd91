# SPDX-License-Identifier: Apache-2.0
"""Copies of a state: their values, their memory, and when what they consist of has changed."""

import torch

from lightning_sagemaker.checkpoint.staging import Staging


def state(value: float, size: int = 3, rate: float = 0.1) -> dict:
    return {"weights": {"w": torch.full((size,), value)}, "groups": [{"lr": rate, "params": ["w"]}]}


def test_a_copy_stays_as_it_was_in_the_same_memory():
    staging, first = Staging(), state(1.0)
    copied = staging.copy(first)
    first["weights"]["w"].fill_(2.0)
    assert copied["weights"]["w"].tolist() == [1.0] * 3
    place = copied["weights"]["w"].data_ptr()
    again = staging.copy(first)
    assert again["weights"]["w"].data_ptr() == place
    assert again["weights"]["w"].tolist() == [2.0] * 3


def test_only_another_structure_is_another_version():
    staging = Staging()
    staging.copy(state(1.0))
    version = staging.version
    assert staging.copy(state(2.0, rate=0.2))["groups"][0]["lr"] == 0.2
    assert staging.version == version
    assert staging.copy(state(2.0, size=4))["weights"]["w"].shape == (4,)
    assert staging.version == version + 1
    staging.copy({**state(2.0, size=4), "more": 1})
    assert staging.version == version + 2
