# SPDX-License-Identifier: Apache-2.0
"""Loaders of a script's own in a loop with Fabric: a resumed loop goes on in the order that they have come to."""

import os
import random
import signal

import pytest
import torch
from lightning.fabric import Fabric

from lightning_sagemaker import InterruptibleLoop
from tests.conftest import new_process
from tests.data.test_run_late import LitData, Streaming

BATCHES, EPOCHS = 10, 3


class Counts:
    """Draws by the number of the epoch, which it counts itself."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        return iter(random.Random(self.epoch).sample(range(BATCHES), BATCHES))


def samples_of(batch):
    return batch[:, 0].tolist() if isinstance(batch, torch.Tensor) else batch


def run(loader, folder, stop=None):
    """The samples of one start, with the numbers of their epochs; a signal comes after so many of its batches."""
    new_process()
    loop, seen = InterruptibleLoop(Fabric(accelerator="cpu", devices=1), folder, {}), []
    try:
        for epoch in loop.epochs(EPOCHS):
            for batch in loop.batches(loader):
                seen.append((epoch, samples_of(batch)))
                if len(seen) == stop:
                    os.kill(os.getpid(), signal.SIGTERM)
    except SystemExit:
        assert stop is not None
    return seen


@pytest.mark.parametrize("stop", [4, 10, 13])
@pytest.mark.parametrize("kind", [Counts, Streaming, LitData])
def test_goes_on_as_if_it_had_been_left_alone(tmp_path, kind, stop):
    alone, loader = [], kind()
    for epoch in range(EPOCHS):
        alone += [(epoch, samples_of(batch)) for batch in loader]
    assert len(alone) == EPOCHS * BATCHES
    assert run(kind(), tmp_path, stop) + run(kind(), tmp_path) == alone
