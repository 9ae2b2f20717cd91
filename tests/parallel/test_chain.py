# SPDX-License-Identifier: Apache-2.0
"""Where a model without a list of blocks is split; values that bypass a split are seen, also after the last block."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from lightning_sagemaker.parallel.chain import find_cut
from lightning_sagemaker.parallel.degrees import ParallelConfigError


class Net(nn.Module):
    """Three layers, the last of which has most parameters; ``skips`` says whose outputs are added to the last one's."""

    def __init__(self, skips=()):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.c = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64))
        self.skips, self.calls = skips, 0

    def forward(self, values, labels):
        self.calls += 1
        first = self.a(values).tanh()
        second = self.b(first).tanh()
        last = self.c(second)[:, :8]
        for name in self.skips:
            last = last + {"a": first, "b": second}[name]
        return functional.cross_entropy(last, labels)


def cut(model, stages=2):
    """The first module of the second stage."""
    batch = (torch.randn(4, 8), torch.tensor([0, 1, 2, 3]))
    blocks, _, partition = find_cut(model, lambda part: model(*part), batch, stages, 0.8)
    return blocks.names[partition.blocks_of(1)[0]]


def test_a_split_that_nothing_bypasses_is_chosen():
    assert cut(Net()) == "c.0"
    assert cut(Net(skips=["a"])) == "b"  # the first layer's output is what the second stage gets


def test_a_value_that_bypasses_all_splits_is_an_error_before_anything_runs():
    with pytest.raises(ParallelConfigError, match="without passing it through the blocks.* HINT: split elsewhere"):
        cut(Net(skips=["a", "b"]), stages=3)


def test_looking_for_it_changes_nothing():
    model = Net()
    cut(model)
    assert model.calls == 0
    assert model.c[1].num_batches_tracked == 0
    assert not model.c[1].running_mean.any()


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, values):
        return values + self.b(self.a(values).tanh())


class Residuals(nn.Module):
    """Lists that are too short for four stages, of blocks whose input bypasses their parts."""

    def __init__(self):
        super().__init__()
        self.stem, self.first, self.last = nn.Linear(8, 8), self.two(8), nn.Sequential(nn.Linear(8, 16), *self.two(16))
        self.head = nn.Linear(16, 4)

    @staticmethod
    def two(width):
        return nn.Sequential(Residual(width), Residual(width))

    def forward(self, values, labels):
        return functional.cross_entropy(self.head(self.last(self.first(self.stem(values)))), labels)


def test_blocks_are_kept_whole_where_a_value_bypasses_their_parts():
    model, batch = Residuals(), (torch.randn(4, 8), torch.tensor([0, 1, 2, 3]))
    blocks, _, partition = find_cut(model, lambda part: model(*part), batch, 4, 0.8)
    assert list(blocks.names) == ["stem", "first.0", "first.1", "last.0", "last.1", "last.2", "head"]
    assert len(partition.ends) == 4
