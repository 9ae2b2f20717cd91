# SPDX-License-Identifier: Apache-2.0
"""A batch that a worker hands over is what it made, whatever is in it, and seldom takes shared memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_sagemaker.data.handover import MOST, hand_over

_LIMITS = [
    2**7 - 1,
    -(2**7),
    2**7,
    2**15 - 1,
    -(2**15),
    2**15,
    -(2**15) - 1,
    2**31 - 1,
    2**31,
    -(2**31),
    2**63 - 1,
    -(2**63),
]
torch.manual_seed(0)  # a worker that is spawned makes them again
BATCHES: list[Any] = [
    {
        "ids": torch.arange(16 * 128).view(16, 128) * 7,
        "mask": torch.ones(16, 128, dtype=torch.int64),
        "labels": torch.tensor([-100, 5]),
    },
    *({"edge": torch.tensor([0, limit])} for limit in _LIMITS),
    {"empty": torch.empty(0, 3, dtype=torch.int64), "scalar": torch.tensor(7), "bool": torch.tensor([True, False])},
    {
        "float": torch.rand(3),
        "half": torch.randn(3).half(),
        "bfloat": torch.randn(3).bfloat16(),
        "byte": torch.arange(3, dtype=torch.uint8),
    },
    {"nan": torch.tensor([float("nan"), -0.0, float("inf")]), "complex": torch.rand(2, dtype=torch.complex64)},
    {
        "turned": torch.arange(12).view(3, 4).T,
        "spread": torch.arange(3).expand(4, 3),
        "sparse": torch.eye(3).to_sparse(),
    },
    {"text": ["one", "two"], "array": np.arange(3), "number": 1.5, "nothing": None, "deep": {"ids": torch.arange(3)}},
    {"large": torch.arange(MOST // 8 + 1) << 40},
    [torch.arange(3), "a list"],
    torch.arange(3),
]


class Batches(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return len(BATCHES)

    def __getitem__(self, index: int) -> Any:
        return BATCHES[index]


class Small(Batches):
    """Batches of one tensor each."""

    def __getitem__(self, index: int) -> Any:
        return {"ids": torch.full((64, 128), index)}


def same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            same(one[name], other[name])
    elif isinstance(one, list):
        for here, there in zip(one, other, strict=True):
            same(here, there)
    elif isinstance(one, Tensor):
        assert (one.dtype, one.layout, one.shape) == (other.dtype, other.layout, other.shape)
        one, other = (tensor.to_dense() for tensor in (one, other))
        assert torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
        assert torch.equal(torch.signbit(one.real), torch.signbit(other.real)) if one.is_floating_point() else True
    else:
        assert one == other


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_batches_are_those_that_torch_hands_over(context):
    options = {"batch_size": None, "num_workers": 2, "multiprocessing_context": context}
    for ours, torchs in zip(DataLoader(Batches(), collate_fn=hand_over, **options), BATCHES, strict=True):
        same(ours, torch.utils.data.default_convert(torchs))


def test_without_workers_nothing_is_sent():
    [batch, *_] = DataLoader(Batches(), batch_size=None, collate_fn=hand_over)
    assert batch["ids"].data_ptr() == BATCHES[0]["ids"].data_ptr()


def test_what_arrives_may_be_written_to():
    for batch in DataLoader(Small(), batch_size=None, collate_fn=hand_over, num_workers=1):
        batch["ids"].add_(1)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is listed in /proc on Linux")
def test_a_batch_takes_no_shared_memory():
    def shared() -> set[str]:
        return {line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/torch_" in line}

    counts, before = [], shared()  # other tests of this process leave theirs mapped until they are collected
    for collate in (hand_over, None):
        kept = list(DataLoader(Small(), batch_size=None, collate_fn=collate, num_workers=1))
        counts.append(len(shared() - before))
        del kept
    assert counts[0] == 0
    assert counts[1] >= len(BATCHES)
