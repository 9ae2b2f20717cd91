# SPDX-License-Identifier: Apache-2.0
"""The functions of SMDDP 1.0 to 1.3."""

import pytest
import torch

from lightning_sagemaker.smdistributed.dataparallel.torch import distributed


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("operation", [torch.distributed.ReduceOp.MAX, torch.distributed.ReduceOp.SUM, "max", None])
def test_only_its_own_reductions_are_taken(operation):
    """Before, anything else was a sum."""
    with pytest.raises(TypeError, match="HINT: use ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.MIN, ReduceOp.MAX"):
        distributed.all_reduce(torch.ones(1), op=operation)
