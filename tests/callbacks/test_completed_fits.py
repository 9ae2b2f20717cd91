# SPDX-License-Identifier: Apache-2.0
"""Loops with Fabric on folds, with one folder of checkpoints; for the Trainer see test_auto_resume_fits.py."""

import os
import signal
from datetime import timedelta

import pytest
import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

from lightning_sagemaker import InterruptibleLoop
from lightning_sagemaker.callbacks.interruption import Interrupted
from tests.conftest import new_process

DATA = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))


def folds(folder, stop=None):
    """What each of three loops has seen: steps and losses."""
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.seed_everything(1, verbose=False)
    seen = []
    for fold in range(3):
        net = torch.nn.Linear(4, 1)
        model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), 0.01))
        loader = fabric.setup_dataloaders(DataLoader(DATA, 4, shuffle=True))
        loop = InterruptibleLoop(
            fabric, folder, {"model": model, "optimizer": optimizer}, save_every=timedelta(0), overhead=1.0
        )
        seen.append([])
        try:
            for _ in loop.epochs(2):
                for batch in loop.batches(loader):
                    loss = model(batch).square().mean()
                    fabric.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                    seen[-1].append((loop.step, loss.item()))
                    if stop == (fold, len(seen[-1])):
                        os.kill(os.getpid(), signal.SIGTERM)
        except Interrupted:
            return seen[:-1]
    return seen


@pytest.mark.parametrize("stop", [(0, 5), (1, 5), (2, 9)])
def test_each_loop_resumes_from_its_own(stop, tmp_path):
    alone = folds(tmp_path / "alone")
    assert [len(one) for one in alone] == [12, 12, 12]
    assert len({one[0][1] for one in alone}) == 3
    new_process()
    assert folds(tmp_path / "stopped", stop) == alone[: stop[0]]
    new_process()
    after = folds(tmp_path / "stopped")
    for fold in range(3):
        begun = len(alone[fold]) - len(after[fold])
        assert after[fold] == alone[fold][begun:], fold
        assert begun == (stop[1] if fold == stop[0] else begun if fold < stop[0] else 0)
