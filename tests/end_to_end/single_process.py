# SPDX-License-Identifier: Apache-2.0
"""What one process computes with worker.py's model and data, by plain torch."""

import torch


def _network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def _gradients() -> list[float]:
    net = _network()
    net(torch.linspace(-1, 1, 32).reshape(8, 4)).square().mean().backward()
    return torch.cat([p.grad.flatten() for p in net.parameters()]).tolist()


def _weights() -> list[float]:
    """Four steps over 32 samples, in the order that DistributedSampler shuffles them with Lightning's default seed."""
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    net, data = _network(), torch.linspace(-1, 1, 128).reshape(32, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in data[order].split(8):
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()]).tolist()


GRADIENTS, WEIGHTS = _gradients(), _weights()
