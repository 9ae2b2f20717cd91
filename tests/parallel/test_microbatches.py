# SPDX-License-Identifier: Apache-2.0
from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass

import pytest
import torch
from torch import nn
from torch.utils.data import default_collate
from transformers import BatchEncoding

from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.parallel.microbatches import Cut
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
    parts, weights, _ = Cut(count)(batch)
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


@dataclass(frozen=True)
class Fields:
    x: torch.Tensor
    rest: dict


def shortened(row):
    return row["x"][: 1 + int(row["y"][0]) % 3]


class ByKeywords(dict):
    """Is not made of a dict."""

    def __init__(self, *, x, y):
        super().__init__(x=x, y=y)


FORMS = {
    "a class of one's own": lambda rows: ByKeywords(**default_collate(rows)),
    "columns in a dict": lambda rows: (
        default_collate(rows) | {"name": [f"s{row['x'][0]}" for row in rows], "all": None}
    ),
    "a tokenizer's batch": lambda rows: BatchEncoding(default_collate(rows)),
    "a dataclass": lambda rows: Fields(torch.stack([row["x"] for row in rows]), default_collate(rows)),
    "arrays": lambda rows: (
        {name: column.numpy() for name, column in default_collate(rows).items()} | default_collate(rows)
    ),
    "samples": lambda rows: rows,
    "samples of different lengths": lambda rows: [{**row, "x": shortened(row)} for row in rows],
    "samples as tuples": lambda rows: [tuple(row.values()) for row in rows],
    "columns of samples": lambda rows: tuple(zip(*((row["x"], {"y": row["y"]}) for row in rows), strict=True)),
    "lists in a dict": lambda rows: {"x": [shortened(row) for row in rows], "y": rows},
    "several rows of each": lambda rows: {
        "x": torch.stack([row["x"] for row in rows]).flatten(),
        **default_collate(rows),
    },
}


def leaves(value) -> list[str]:
    """All numbers and strings of a value, of tensors and arrays one by one."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        value = list(value.values())
    return [leaf for entry in value for leaf in leaves(entry)] if isinstance(value, list | tuple) else [str(value)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [2, 3, 8])
def test_each_part_is_what_the_loader_would_give_of_its_samples(form, count):
    """The script's own ``collate_fn``, called with those samples, decides."""
    rows = [{"x": torch.arange(3) + 10 * number, "y": torch.tensor([number, -number])} for number in range(8)]
    cut = Cut(count, batch_size=8)
    for samples in (8, 8, 5):  # of the epoch's last batch it is not visible whether it was collated
        parts, weights, reason = cut(FORMS[form](rows[:samples]))
        assert not reason
        assert len(parts) == min(count, samples)
        start = 0
        for part, weight in zip(parts, weights, strict=True):
            end = start + round(weight * samples)
            expected = FORMS[form](rows[start:end])
            assert (type(part), leaves(part)) == (type(expected), leaves(expected))
            start = end
        assert start == samples


def test_a_data_set_smaller_than_its_batches_is_not_a_list_of_samples():
    columns = [torch.zeros(2, 4, dtype=torch.long), torch.zeros(2, 4), torch.zeros(2)]
    assert [len(part[0]) for part in Cut(2, batch_size=3)(columns).parts] == [1, 1]
    assert [len(part) for part in Cut(2, batch_size=3)([torch.zeros(2, 4)] * 3).parts] == [2, 1]


def test_it_must_be_clear_what_the_samples_are():
    class Graph:
        def smp_slice(self, count, number, axis):
            return number

    parts, _, reason = Cut(2)({"x": torch.zeros(8, 2), "table": torch.zeros(5)})
    assert (len(parts), reason) == (1, "its tensors have different first dimensions: 8, 5")
    assert Cut(2)(object()).reason == "no tensor was found in it (object)"
    with pytest.raises(ParallelConfigError, match="7 samples"):
        Cut(2)([torch.zeros(7), Graph()])
    assert Cut(2)([torch.zeros(8), Graph()]).weights == [0.5, 0.5]


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
