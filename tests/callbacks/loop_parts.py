# SPDX-License-Identifier: Apache-2.0
"""What the workers with custom loops share: a model set up with Fabric, and the loop, ours or a plain one."""

import torch
from lightning.fabric import Fabric, seed_everything

from lightning_sagemaker import InterruptibleLoop


class Plain:
    """The same loop without us."""

    def __init__(self):
        self.batch = self.step = 0

    def epochs(self, count):
        yield from range(count)

    def batches(self, loader):
        for self.batch, batch in enumerate(loader):
            yield batch
            self.step += 1

    def evaluation(self, loader):
        yield from loader


def set_up(ranks):
    """Fabric after its launch, a small model with dropout, and its optimizer."""
    torch.set_num_threads(1)
    seed_everything(1, verbose=False)
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto")
    fabric.launch()
    seed_everything(1, verbose=False)
    body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    return fabric, *fabric.setup(body, torch.optim.SGD(body.parameters(), lr=0.05, momentum=0.9))


def make_loop(fabric, folder, state, is_ours):
    """The loop, which exchanges signals after each batch, or a plain one."""
    options = {"save_every": None, "overhead": 10.0}
    return InterruptibleLoop(fabric, folder / "checkpoints", state, **options) if is_ours else Plain()
