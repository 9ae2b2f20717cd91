# SPDX-License-Identifier: Apache-2.0
"""Buffers are copied as they are."""

import torch

from lightning_sagemaker.checkpoint.rank_buffers import fetched


def test_tensors_that_are_fetched_together_are_equal():
    tensors = [torch.tensor(3.0), torch.rand(2, 3).T, torch.rand(0, 4), torch.rand(5)]
    copies = fetched(tensors)
    tensors[0] += 1
    assert copies[0] == 3
    assert all(copy.untyped_storage().nbytes() == copy.nbytes for copy in copies)  # a checkpoint may hold one of them
    assert all(torch.equal(one, copy) for one, copy in zip(tensors[1:], copies[1:], strict=True))
