# SPDX-License-Identifier: Apache-2.0
"""In the style of AWS's samples for SMDDP from 1.4 on: torch's DDP over the backend ``smddp``."""

import os

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 - registers the backend
import torch.distributed as dist
from common import loader, net, report, train, weights
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group(backend="smddp")
rank, world_size = dist.get_rank(), dist.get_world_size()
model = DDP(net())
loss = train(model, loader(rank, world_size))
dist.all_reduce(loss)
facts = {"loss": loss.item() / world_size, "local_rank": int(os.environ["LOCAL_RANK"]), "world_size": world_size}
report(weights=weights(model.module), backend=dist.get_backend(), **facts)
