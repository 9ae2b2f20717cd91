# SPDX-License-Identifier: Apache-2.0
"""The copy of a loop's state is what Lightning itself writes, wherever in a fit it is taken."""

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from lightning_sagemaker._compat.loop_state import loop_state


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(2, 1)

    def training_step(self, batch, _):
        return self.net(batch[0]).sum()

    def validation_step(self, batch, _):
        self.log("loss", self.net(batch[0]).sum())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Compares(Callback):
    """At each hook of a fit."""

    def __init__(self) -> None:
        self.states = []

    def _compare(self, trainer, *_) -> None:
        found, expected = loop_state(trainer.fit_loop), trainer.fit_loop.state_dict()
        assert found == expected
        assert list(found) == list(expected)
        self.states.append((found, str(found)))

    on_train_start = on_train_epoch_start = on_train_batch_start = on_train_batch_end = _compare
    on_validation_start = on_validation_batch_end = on_validation_end = on_train_epoch_end = on_fit_end = _compare


def test_it_is_what_lightning_writes():
    compares, data = Compares(), DataLoader(TensorDataset(torch.ones(6, 2)), 2)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    Trainer(max_epochs=2, callbacks=[compares], enable_model_summary=False, **options).fit(Module(), data, data)
    assert len({text for _, text in compares.states}) > 20
    assert all(str(state) == text for state, text in compares.states)  # which no later step has changed
