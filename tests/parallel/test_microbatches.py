# SPDX-License-Identifier: Apache-2.0
from collections import namedtuple

import pytest
import torch
from torch import nn

from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.parallel.microbatches import cut
from lightning_sagemaker.strategies.merge import merge
from lightning_sagemaker.strategies.step_logs import Record, replay

Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize("samples", range(1, 13))
@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_parts_are_the_batch_and_their_weighted_losses_its_loss(samples, count):
    """The gradient of the mean over all samples, by parts; torch's own gradient decides."""
    torch.manual_seed(0)
    batch = Pair(
        torch.randn(samples, 3), {"labels": torch.randn(samples), "number": torch.tensor(2.0), "text": "as is"}
    )
    linear = nn.Linear(3, 1)

    def loss_of(part):
        return nn.functional.mse_loss(linear(part.x)[:, 0] * part.y["number"], part.y["labels"])

    loss_of(batch).backward()
    expected = linear.weight.grad.clone()
    linear.weight.grad = None
    parts, weights = cut(batch, count)
    losses = [loss_of(part) for part in parts]
    for loss, weight in zip(losses, weights, strict=True):
        (loss * weight).backward()
    assert len(parts) == min(count, samples)
    assert sum(weights) == pytest.approx(1)
    assert torch.equal(torch.cat([part.x for part in parts]), batch.x)
    assert {type(part) for part in parts} == {Pair}
    assert max(len(part.x) for part in parts) - min(len(part.x) for part in parts) <= 1
    assert torch.allclose(linear.weight.grad, expected, atol=1e-6)
    merged = merge([loss.detach() for loss in losses], weights)
    assert float(merged) == pytest.approx(float(loss_of(batch).detach()), abs=1e-6)


def test_it_must_be_clear_what_the_samples_are():
    class Graph:
        def smp_slice(self, count, number, axis):
            return number

    with pytest.raises(ParallelConfigError, match="7 samples, which is not divisible into 2 microbatches"):
        cut({"x": torch.zeros(7, 2), "table": torch.zeros(5)}, 2)
    with pytest.raises(ParallelConfigError, match="7 samples"):
        cut([torch.zeros(7), Graph()], 2)
    assert cut([torch.zeros(8), Graph()], 2).weights == [0.5, 0.5]


def test_logged_numbers_count_by_their_samples():
    class Module:
        def __init__(self):
            self.logged = {}

        def log(self, name, value, **options):
            self.logged[name] = (float(value), options)

    module = Module()
    records = [Record("loss", torch.tensor(1.0), None, {"batch_size": 3}, 0.75)]
    records += [Record("loss", torch.tensor(5.0), None, {"batch_size": 1}, 0.25), Record("rare", 7.0, None, {}, 0.25)]
    replay(module, records)
    assert module.logged == {"loss": (2.0, {"batch_size": 4}), "rare": (7.0, {})}
