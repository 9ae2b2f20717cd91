# SPDX-License-Identifier: Apache-2.0
"""In the style of AWS's samples for SMDDP 1.0 to 1.3: its own functions and its own DistributedDataParallel."""

import smdistributed.dataparallel.torch.distributed as dist
import torch
from common import loader, net, report, train, weights
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP

dist.init_process_group()
rank, world_size = dist.get_rank(), dist.get_world_size()
model = DDP(net().to(torch.device("cpu")), broadcast_buffers=False)
loss = train(model, loader(rank, world_size))
dist.all_reduce(loss, op=dist.ReduceOp.AVERAGE)
dist.barrier()
report(weights=weights(model.module), loss=loss.item(), local_rank=dist.get_local_rank(), world_size=world_size)
