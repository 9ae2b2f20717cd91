# SPDX-License-Identifier: Apache-2.0
"""In the style of AWS's samples for SMP 2 with SMDDP: ``smddp`` first, then ``torch.sagemaker``, then FSDP."""

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 - registers the backend
import torch
import torch.distributed as dist
import torch.sagemaker as tsm
from common import loader, net, report, train, weights
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group(backend="smddp")
tsm.init({"hybrid_shard_degree": dist.get_world_size()})
model = FSDP(net(), device_id=torch.device("cpu"))
train(model, loader(dist.get_rank(), dist.get_world_size()))
with FSDP.summon_full_params(model, writeback=False):
    report(weights=weights(model), backend=dist.get_backend(), world_size=dist.get_world_size())
