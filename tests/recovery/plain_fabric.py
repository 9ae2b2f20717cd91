# SPDX-License-Identifier: Apache-2.0
"""A loop with Fabric that knows nothing of recovery; its argument: the strategy."""

import sys

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset

import lightning_sagemaker  # noqa: F401

fabric = Fabric(strategy=sys.argv[1], accelerator="cpu", devices=2)
fabric.launch()
fabric.seed_everything(3, verbose=False)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
model, optimizer = fabric.setup(net, torch.optim.Adam(net.parameters()))
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.randn(64, 4)), 4, shuffle=True))
for _ in range(2):
    for number, (batch,) in enumerate(loader):
        accumulates = number % 2 == 0
        with fabric.no_backward_sync(model, enabled=accumulates):
            fabric.backward(model(batch).square().mean())
        if not accumulates:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
total = fabric.all_reduce(torch.cat([one.detach().flatten() for one in net.parameters()]).sum())
if fabric.is_global_zero:
    print("found", repr(total.item()), [one.double().sum().item() for one in net.state_dict().values()])
