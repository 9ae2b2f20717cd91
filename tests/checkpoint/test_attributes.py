# SPDX-License-Identifier: Apache-2.0
"""What a script's own classes keep in plain attributes, over a step that is discarded, and in a replacement."""

import copy
import os
import pickle
from collections import Counter, defaultdict, deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from torch.distributed.device_mesh import init_device_mesh
from torchmetrics import MeanMetric
from transformers.utils import ModelOutput

from lightning_sagemaker._compat.sharding import fully_shard
from lightning_sagemaker.checkpoint.attributes import PlainAttributes
from lightning_sagemaker.checkpoint.module_walk import named_modules


class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0


class Meter:
    def __init__(self):
        self.sum, self.rows = 0.0, []

    def update(self, value):
        self.sum += value
        self.rows.append(value)


class Reader(Meter):
    """Has more than numbers."""

    def __init__(self):
        super().__init__()
        self.file = open(os.devnull)  # noqa: SIM115


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.part, self.metric = Part(), MeanMetric()
        self.steps, self.best, self.name = 0, None, "module"
        self.outputs, self.by_kind, self.sums = [], {"a": [], "b": 0}, defaultdict(float)
        self.shadow, self.matrix = torch.zeros(3), np.zeros((2, 2))
        self.meter, self.meters, self.reader = Meter(), {"a": Meter(), "b": [1]}, Reader()
        self.last, self.ids, self.counts = deque(maxlen=2), set(), Counter()


class Counts(Callback):
    def __init__(self):
        self.batches, self.rows = 0, []


class Saved(Counts):
    def state_dict(self):
        return {}


def trained():
    """A Trainer as far as attributes go, and what looks at them."""
    module, callbacks = Module(), [Counts(), Saved()]
    trainer = SimpleNamespace(lightning_module=module, callbacks=callbacks, datamodule=None)
    children = named_modules(module)
    attributes = PlainAttributes(trainer, lambda: children)
    attributes.begin()
    return module, callbacks, attributes


def step(module, callbacks, number=1):
    module.part.calls += 1
    module.metric.update(1.0)
    module.steps += number
    module.best = 0.5 * module.steps
    module.outputs.append(torch.tensor(float(number)))
    module.by_kind["a"].append(number)
    module.by_kind["b"] += number
    module.sums["loss"] += number
    module.shadow.mul_(0.5).add_(number)
    module.matrix[0, 0] += number
    module.last.append(number)
    module.ids.add(number)
    module.counts[number] += 1
    module.added = [number]
    for meter in (module.meter, module.meters["a"], module.reader):
        meter.update(number)
    for callback in callbacks:
        callback.batches += 1
        callback.rows.append(number)


NAMES = ("steps", "best", "name", "outputs", "by_kind", "sums", "shadow", "matrix", "last", "ids", "counts")


def values(module, callbacks):
    found = {name: getattr(module, name) for name in NAMES} | {"part": module.part.calls, "rows": callbacks[0].rows}
    found |= {f"meter {number}": vars(one) for number, one in enumerate((module.meter, module.meters["a"]))}
    return {name: repr(value) for name, value in (found | {"batches": callbacks[0].batches}).items()}


def test_a_discarded_step_changes_nothing():
    module, callbacks, attributes = trained()
    step(module, callbacks, 1)
    expected, aliased = values(module, callbacks), module.by_kind["a"]
    del module.added
    held = attributes.now()
    step(module, callbacks, 2)
    module.outputs = []  # as at an epoch's end
    attributes.put(held)
    assert values(module, callbacks) == expected
    assert not hasattr(module, "added")
    assert module.by_kind["a"] is aliased
    attributes.put(held)
    assert values(module, callbacks) == expected  # what is held is not what is trained on
    assert module.reader.rows == [1, 2]
    assert callbacks[1].batches == 2  # its state_dict says what belongs to a step
    assert module.metric._update_count == 2  # metrics are restored elsewhere


def test_a_replacement_gets_what_has_changed():
    module, callbacks, attributes = trained()
    module.name = "rank 0"
    other, its_callbacks, its_attributes = trained()
    other.name = "rank 1"
    attributes._begun, its_attributes._begun = None, None  # such names are set before the first step
    attributes.begin()
    its_attributes.begin()
    for number in (1, 2, 3):
        step(module, callbacks, number)
    sent = attributes.changed()
    its_attributes.adopt(pickle.loads(pickle.dumps(copy.deepcopy(sent))))
    expected = values(module, callbacks) | {"name": repr("rank 1")}
    assert values(other, its_callbacks) == expected
    assert other.added == [3]
    assert other.metric._update_count == 0
    assert attributes.changed()["module"].keys() == sent["module"].keys()
    assert "name" not in sent["module"]


def test_a_pass_for_another_rank_counts_nothing():
    module, callbacks, attributes = trained()
    start = attributes.now()
    step(module, callbacks)
    with attributes.of_another_rank(start):
        assert (module.steps, module.part.calls) == (0, 0)
        step(module, callbacks)
    assert (module.steps, module.best, module.part.calls, callbacks[0].batches) == (1, 0.5, 1, 1)
    assert len(module.outputs) == 2  # what it has computed is kept


def test_a_name_may_have_become_that_of_a_module_or_of_nothing_plain():
    module, _, attributes = trained()
    module.head, module.loss = None, torch.ones(1, requires_grad=True) * 2
    held = attributes.now()
    module.head = torch.nn.Linear(1, 1)
    module.loss = None
    attributes.put(held)
    assert isinstance(module.head, torch.nn.Linear)
    assert module.loss is None


@pytest.mark.parametrize(
    "value", [[torch.nn.Parameter(torch.ones(2))], object(), [object()], torch.nn.Linear, {"a": len}]
)
def test_what_is_not_plain_is_left_alone(value):
    module, _, attributes = trained()
    module.other = value
    held = attributes.now()
    assert all("other" not in found for found in attributes.changed().values())
    attributes.put(held)
    assert module.other is value


def test_values_that_cannot_be_written_to_are_restored_all_the_same():
    module, _, attributes = trained()
    with torch.inference_mode():
        module.mean = torch.ones(2)
    module.mask, module.fixed = torch.ones(1).expand(3), np.ones(2)
    module.fixed.flags.writeable = False
    module.found = ModelOutput(loss=1)  # refuses `update`
    held = attributes.now()
    with torch.inference_mode():
        module.mean += 1
    attributes.put(held)
    assert module.mean.tolist() == [1, 1]
    assert module.mask.tolist() == [1, 1, 1]
    assert "found" not in attributes.changed()["module"]


def test_losses_that_were_not_detached_are_sent_without_their_graph():
    module, _, attributes = trained()
    loss = torch.ones((), requires_grad=True) * 2
    module.outputs.append(loss)
    held = attributes.now()
    (sent,) = attributes.changed()["module"]["outputs"]
    assert sent == 2
    assert not sent.requires_grad
    attributes.put(held)
    assert module.outputs == [loss]
    assert module.outputs[0].grad_fn is loss.grad_fn


def test_a_replacement_sends_on_what_it_was_sent():
    module, _callbacks, attributes = trained()
    other, _, its_attributes = trained()
    module.kind = {"sums": defaultdict(float, a=1.0)}
    other.kind = {"sums": defaultdict(float)}
    its_attributes.adopt(attributes.changed())
    other.kind["sums"]["b"] += 1
    assert its_attributes.changed()["module"]["kind"] == {"sums": {"a": 1.0, "b": 1.0}}


def test_a_module_that_is_sharded_is_still_the_scripts(group_of_one):
    module = Module()
    expected = PlainAttributes(SimpleNamespace(lightning_module=module, callbacks=[]), lambda: named_modules(module))
    names = [*expected._of()]
    for part in (module.part, module):
        fully_shard(part, mesh=init_device_mesh("cpu", (1,)))
    found = PlainAttributes(expected._trainer, lambda: named_modules(module))
    assert [*found._of()] == names == ["module", "module.part"]
