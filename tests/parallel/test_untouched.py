# SPDX-License-Identifier: Apache-2.0
"""What running a module's code on shapes must not leave behind."""

import torch
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from lightning_sagemaker.parallel.untouched import untouched


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.accuracy = MulticlassAccuracy(num_classes=4)
        self.seen, self.kept, self.calls = [], {}, 0
        self.plain = torch.zeros(2)
        self.register_buffer("replaced", torch.zeros(2))

    def forward(self, values):
        self.calls += 1
        self.seen.append(values)
        self.kept["values"] = values
        self.plain.add_(1)
        self.replaced = self.replaced + 1
        self.last = values
        self.accuracy(values, torch.zeros(len(values), dtype=torch.long))
        return self.norm(values)


def test_nothing_is_left_behind():
    module, values = Counts(), torch.randn(8, 4)
    replaced, lists = module.replaced, (module.seen, module.kept)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with untouched(module):
        module(values)
        assert module.calls == 1
        assert module.norm.num_batches_tracked == 1
        assert module.accuracy._update_count == 1
    after = module.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert (module.calls, module.seen, module.kept) == (0, [], {})
    assert (module.seen, module.kept) == lists
    assert module.seen is lists[0]
    assert module.replaced is replaced
    assert not hasattr(module, "last")
    assert torch.equal(module.plain, torch.zeros(2))
    assert module.accuracy._update_count == 0
    assert not module.accuracy.tp.any()


def test_after_an_error_too_and_parameters_are_left_alone():
    module = nn.Linear(2, 2)
    try:
        with untouched(module), torch.no_grad():
            module.weight.zero_()
            module.calls = 1
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert not module.weight.any()
    assert not hasattr(module, "calls")
