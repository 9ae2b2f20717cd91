# SPDX-License-Identifier: Apache-2.0
"""What a step changes on the last stage, the others take over; a copy of the module that ran the step decides."""

import pickle

import numpy as np
import pytest
import torch

from lightning_sagemaker._lightning import LightningModule
from lightning_sagemaker.strategies.step_attributes import StepAttributes


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.count, self.name, self.outputs, self.by_name = 0, "a", [torch.zeros(2)], {"x": [1]}
        self.mean, self.array, self.large = torch.zeros(3), np.zeros(2), torch.zeros(2**20 + 1)
        self.opened = open  # what cannot be sent

    def before(self):
        """What all stages run."""
        self.outputs.append(torch.tensor(1.0))
        self.count += 1

    def after(self):
        self.outputs.append({"loss": torch.ones(2), "n": 3})
        self.by_name = {**self.by_name, "y": 0.5}
        self.mean += 1
        self.array = self.array + 1
        self.best = torch.ones((), requires_grad=True) * 2

    def in_place(self):
        self.by_name["x"][0] += 1
        self.array[1] += 2
        self.mean.mul_(2).add_(1)
        self.outputs[0] = 3
        self.by_name["z"] = self.by_name.get("z", 0.5) + 1.5

    def replaces(self):
        self.outputs = [5]
        self.name = "b"

    def clears(self):
        self.outputs.clear()
        self.outputs.append(7)

    def cannot_be_sent(self):
        self.outputs.append(open)
        self.large = self.large + 1
        self.opened = len


def values(module):
    own = {name: value for name, value in vars(module).items() if name not in vars(LightningModule())}
    return {name: repr(value) for name, value in own.items()}


@pytest.mark.parametrize(
    "steps", [["before"], ["before", "after"], ["after", "after"], ["replaces"], ["clears"], ["in_place"], []]
)
def test_other_stages_have_what_the_last_one_has(steps):
    last, other = Module(), Module()
    held, kept = other.outputs, []
    for _ in range(2):
        on_last, on_other = StepAttributes(last), StepAttributes(other)
        for step in steps:
            getattr(last, step)()
        if "before" in steps:
            other.before()
        kept.append(on_last.changed())
        on_other.take_over(pickle.loads(pickle.dumps(kept[-1])))
        assert {**values(other), "best": ""} == {**values(last), "best": ""}
    assert other.outputs is held  # what else holds the list sees it
    if "after" in steps:
        assert float(other.best) == 2
        assert not other.best.requires_grad
        assert len(kept[1]["outputs"].entries) < len(last.outputs)  # only what is new is sent
    assert bool(kept[0]) == bool(steps)


def test_what_cannot_be_sent_stays_as_it_is():
    module = Module()
    attributes = StepAttributes(module)
    module.cannot_be_sent()
    assert attributes.changed() == {}
