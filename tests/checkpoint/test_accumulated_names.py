# SPDX-License-Identifier: Apache-2.0
"""Which attributes follow from their own earlier values."""

import time

from lightning_sagemaker.checkpoint.accumulated_names import accumulated_names, saved_names


class Base:
    def cool(self):
        self.temperature *= 0.9


class Script(Base):
    made = lambda self: 1  # noqa: E731

    def __init__(self):
        self.beta = self.unset = 0

    def training_step(self, batch):
        self.beta = min(1, self.beta + 0.1)
        self.loss = batch.sum()
        self.layers[1].p += 0.1
        self.sampler.weights[batch] = self.loss
        self.rows.append(self.loss)
        rows = []
        rows.append(self.loss)
        if self.loss < self.best:
            self.best = self.loss
        self.length = batch.length

    def on_train_batch_end(self):
        self.seconds += time.monotonic() - self.began

    def on_save_checkpoint(self, checkpoint):
        checkpoint["beta"] = self.beta


def test_counters_annealed_values_and_lists_that_grow():
    assert accumulated_names(Script) == {"beta", "p", "weights", "rows", "best", "temperature"}
    assert accumulated_names(Script, ("cool",)) == {"temperature"}
    assert "beta" in saved_names(Script)
    assert "best" not in saved_names(Script)
    assert accumulated_names(int) == frozenset()
