# SPDX-License-Identifier: Apache-2.0
"""Callbacks that average weights and validate the averages, as people write them."""

from __future__ import annotations

import torch
from lightning.pytorch import Callback

DECAY = 0.8


class LoadsAverages(Callback):
    """A callback that loads a state dict of averages, and in the end the module's own."""

    def on_fit_start(self, trainer, module):
        if not hasattr(self, "means"):
            self.means = {name: tensor.clone() for name, tensor in module.state_dict().items()}

    def on_train_batch_end(self, trainer, module, *_):
        for name, tensor in module.state_dict().items():
            self.means[name] = (
                tensor.clone() if not tensor.is_floating_point() else self.means[name].lerp(tensor, 1 - DECAY)
            )

    def on_validation_start(self, trainer, module):
        if not trainer.sanity_checking:
            self.own = {name: tensor.clone() for name, tensor in module.state_dict().items()}
            module.load_state_dict(self.means)

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            module.load_state_dict(self.own)

    def state_dict(self):
        return {"means": self.means}

    def load_state_dict(self, state):
        self.means = state["means"]


class ExchangesValues(LoadsAverages):
    """A callback that exchanges weights and averages in place."""

    def on_fit_start(self, trainer, module):
        if not hasattr(self, "means"):
            self.means = [parameter.detach().clone() for parameter in module.parameters()]

    def on_train_batch_end(self, trainer, module, *_):
        for mean, parameter in zip(self.means, module.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 1 - DECAY)

    @torch.no_grad()
    def on_validation_start(self, trainer, module):
        for mean, parameter in zip(self.means, module.parameters(), strict=True):
            own = parameter.clone()
            parameter.copy_(mean)
            mean.copy_(own)

    on_validation_end = on_validation_start


class ExchangesPointers(ExchangesValues):
    """A callback that lets the parameters have the averages' memory, and keeps theirs."""

    def on_validation_start(self, trainer, module):
        for number, parameter in enumerate(module.parameters()):
            self.means[number], parameter.data = parameter.data, self.means[number]

    on_validation_end = on_validation_start


class KeepsThemInPlace(Callback):
    """A callback that puts the weights back only when the next epoch begins, as schnetpack's; also at a fit's start."""

    def __init__(self):
        self.average = self.to_load = None

    def on_fit_start(self, trainer, module):
        self.average = {"means": [parameter.detach().clone() for parameter in module.parameters()]}
        if self.to_load is not None:
            self.average, self.to_load = self.to_load, None
        self._put_in_place(module)

    def _put_in_place(self, module):
        self.average["stored"] = [parameter.detach().clone() for parameter in module.parameters()]
        for mean, parameter in zip(self.average["means"], module.parameters(), strict=True):
            parameter.data.copy_(mean)

    def on_train_epoch_start(self, trainer, module):
        for own, parameter in zip(self.average["stored"], module.parameters(), strict=True):
            parameter.data.copy_(own)

    def on_train_batch_end(self, trainer, module, *_):
        for mean, parameter in zip(self.average["means"], module.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 1 - DECAY)

    def on_validation_epoch_start(self, trainer, module):
        self._put_in_place(module)

    def state_dict(self):
        return {"average": self.average}

    def load_state_dict(self, state):
        if self.average is None:
            self.to_load = state["average"]
        else:
            self.average = state["average"]


AVERAGES = {
    "loads_averages": LoadsAverages,
    "exchanges_values": ExchangesValues,
    "exchanges_pointers": ExchangesPointers,
}
