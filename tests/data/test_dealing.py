# SPDX-License-Identifier: Apache-2.0
"""What is not known of a loader is not made up."""

from types import SimpleNamespace

import torch
from torch.utils.data import DataLoader, SequentialSampler

from lightning_sagemaker.data.dealing import as_bits, is_counted, remaining

PLACE = {"num_replicas": 2, "rank": 0}


def test_the_rest_of_an_epoch_is_known_of_torchs_loaders_only():
    """Others may look like one."""
    loader, nothing = DataLoader(range(8), 2), as_bits(torch.arange(4).numpy(), 8)
    assert remaining(loader, PLACE, 0, 4, 0, nothing) == [[4, 6]]
    own = SimpleNamespace(dataset=range(8), sampler=SequentialSampler(range(8)), batch_size=2)
    assert remaining(own, PLACE, 0, 4, 0, nothing) is None
    assert not is_counted(own)
    assert not is_counted(SimpleNamespace(dataset=range(8)))
