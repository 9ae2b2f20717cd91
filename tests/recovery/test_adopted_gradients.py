# SPDX-License-Identifier: Apache-2.0
"""One process that trains on three shards has the gradients of three that train on one each."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from lightning_sagemaker.recovery.adopted_gradients import AdoptedGradients

SHARDS = 3


class Ranks:
    """Three ranks with a gradient each, as they are without a loss."""

    def __init__(self):
        self.gradients = [None] * SHARDS

    def backward(self, added, averages):
        self.gradients = [one if own is None else own + one for own, one in zip(self.gradients, added, strict=True)]
        if averages:
            self.average()

    def average(self):
        if self.gradients[0] is not None:
            self.gradients = [sum(self.gradients) / SHARDS] * SHARDS

    def zero(self):
        self.gradients = [None] * SHARDS


class One:
    """One process that has adopted the other two shards."""

    def __init__(self):
        self.parameter, self.adopted = nn.Parameter(torch.zeros(1, dtype=torch.float64)), AdoptedGradients()
        self.is_averaged = True

    def _add(self, value):
        own = self.parameter.grad
        self.parameter.grad = torch.tensor([value], dtype=torch.float64) if own is None else own + value

    def batch(self, calls):
        for shard in range(1, SHARDS):
            with self.adopted.one_pass(shard, [self.parameter]):
                for name, *arguments in calls:
                    if name == "zero":
                        self.parameter.grad = None
                    if name == "backward":
                        added, averages = arguments
                        with self.adopted.backward(shard, [self.parameter], averages):
                            self._add(added[shard])
        with self.adopted.own_pass():
            for name, *arguments in calls:
                if name == "zero":
                    self.parameter.grad = None
                if name == "backward":
                    added, averages = arguments
                    self.is_averaged = False
                    self.adopted.keep_base([self.parameter])
                    self._add(added[0])
                if name == "average" or (name == "backward" and averages):
                    self._average()

    def _average(self):
        if not self.is_averaged:
            self.is_averaged = True
            self.adopted.add()
            self.parameter.grad /= SHARDS


def program(rng):
    """Batches of backward passes; whether the gradients are averaged after each; sometimes a step follows."""
    for _ in range(6):
        calls = [("zero",)] if rng.random() < 0.3 else []
        for _ in range(rng.randint(1, 3)):
            calls.append(("backward", [float(rng.randint(-9, 9)) for _ in range(SHARDS)], rng.random() < 0.5))
        yield [*calls, ("average",)] if rng.random() < 0.5 else calls


def test_equals_that_of_three_ranks():
    for seed in range(200):
        rng, ranks, one = random.Random(seed), Ranks(), One()
        for calls in program(rng):
            one.batch(calls)
            for name, *arguments in calls:
                getattr(ranks, name)(*arguments)
            own = None if one.parameter.grad is None else one.parameter.grad.item()
            assert own == pytest.approx(ranks.gradients[0], rel=1e-12), seed


def test_what_was_accumulated_before_a_batch_without_a_backward_pass_counts():
    one = One()
    for calls in ([("backward", [1.0, 2.0, 6.0], False)], [], [("average",)]):
        one.batch(calls)
    assert one.parameter.grad.item() == 3.0
