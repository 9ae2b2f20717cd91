# SPDX-License-Identifier: Apache-2.0
"""After a step all ranks have the first shard's buffers, and of those that hooks change their own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_sagemaker.recovery.buffers import FIRST, SharedBuffers


@pytest.mark.usefixtures("group_of_one")
def test_a_hook_among_accumulated_batches_counts_while_the_first_rank_is_missing():
    """Another rank has adopted its shard; hooks are called for its own batches only."""
    module = nn.BatchNorm1d(3)
    module.register_buffer("average", torch.zeros(3))
    buffers = SharedBuffers(lambda: [module])
    buffers.begin_step()
    for _ in range(2):
        module(torch.randn(4, 3))
        module.average += 1.0
    first = nn.BatchNorm1d(3)
    with buffers.of_shard(FIRST):
        for _ in range(2):
            batch = torch.randn(4, 3)
            module(batch)
            first(batch)
    buffers.put(buffers.of_first(0))
    assert torch.equal(module.running_mean, first.running_mean)
    assert torch.equal(module.running_var, first.running_var)
    assert module.average.tolist() == [2.0, 2.0, 2.0]
