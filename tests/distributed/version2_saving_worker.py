# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of ``torch.sagemaker`` as AWS's guide describes them: of each shard by its replicas, or by one replica.

``version2_saving_worker.py OUT_DIR`` writes ``OUT_DIR/rank-R.json``.
"""

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from lightning_sagemaker.smdistributed import importer

importer.install()
import torch.sagemaker as tsm  # noqa: E402
from torch.sagemaker.distributed.checkpoint.filesystem import DistributedFileSystemReader  # noqa: E402
from torch.sagemaker.distributed.checkpoint.state_dict_loader import load  # noqa: E402
from torch.sagemaker.distributed.checkpoint.state_dict_saver import (  # noqa: E402
    async_save,
    maybe_finalize_async_calls,
)
from torch.sagemaker.distributed.checkpoint.state_dict_utils import (  # noqa: E402
    SMStateDictType,
    init_optim_state,
    sm_state_dict_type,
)
from torch.sagemaker.utils.process_group_utils import get_global_ranks  # noqa: E402

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
OUT = Path(sys.argv[1])


def build(seed: int, original: bool):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(6, 10), *(nn.Sequential(nn.Linear(10, 10), nn.Tanh()) for _ in range(2)))
    policy = ModuleWrapPolicy({nn.Sequential})
    model = FSDP(network, auto_wrap_policy=policy, use_orig_params=original, device_id=torch.device("cpu"))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, optimizer, steps) -> None:
    for number in steps:
        random = torch.Generator().manual_seed(100 * number + dist.get_rank())
        model(torch.randn(4, 6, generator=random)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def difference(one, other) -> float:
    with FSDP.summon_full_params(one), FSDP.summon_full_params(other):
        return max((a - b).abs().max().item() for a, b in zip(one.parameters(), other.parameters(), strict=True))


def by_replicas(folder: Path, original: bool) -> dict:
    """Each shard has a folder, which the ranks that hold it write together; nothing is passed to the model by hand."""
    groups = {tuple(ranks): dist.new_group(ranks) for ranks in tsm.state.ranker.get_rep_groups()}
    ranks, group = next((ranks, group) for ranks, group in groups.items() if dist.get_rank() in ranks)
    model, optimizer = build(0, original)
    train(model, optimizer, range(3))
    place = folder / f"tp{tsm.state.tp_rank}_ep{tsm.state.ep_rank}_fsdp{model.rank}"
    maybe_finalize_async_calls(blocking=True, process_group=group)
    with sm_state_dict_type(model, SMStateDictType.SM_LOCAL_STATE_DICT):
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}
    async_save(content, checkpoint_id=str(place), process_group=group, coordinator_rank=min(ranks))
    train(model, optimizer, range(3, 4))  # beside the writing
    maybe_finalize_async_calls(blocking=True, process_group=group)
    dist.barrier()

    again, its = build(9, original)
    with sm_state_dict_type(again, SMStateDictType.SM_LOCAL_STATE_DICT):
        content = {"model": again.state_dict(), "step": 0}
        init_optim_state(its, skip_empty_param=True)
        content["optimizer"] = its.state_dict()
    reader = DistributedFileSystemReader(str(place))
    load(state_dict=content, process_group=group, coordinator_rank=min(ranks), storage_reader=reader)
    train(again, its, range(3, 4))
    return {"difference": difference(model, again), "step": content["step"]}


def by_one_replica(folder: Path, original: bool) -> dict:
    """Only the first replica calls."""
    model, optimizer = build(0, original)
    train(model, optimizer, range(3))
    group = model.process_group
    maybe_finalize_async_calls(blocking=True, process_group=group)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        content = {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}
    part = next(iter(content["model"].values()))
    if tsm.state.ranker.get_rep_rank(dist.get_rank()) == 0:
        first = min(get_global_ranks(group))
        async_save(content, checkpoint_id=str(folder), process_group=group, coordinator_rank=first)
    train(model, optimizer, range(3, 4))
    maybe_finalize_async_calls(blocking=True, process_group=group)
    dist.barrier()

    again, its = build(9, original)
    with FSDP.state_dict_type(again, StateDictType.SHARDED_STATE_DICT):
        init_optim_state(its)
        content = {"model": again.state_dict(), "optimizer": FSDP.optim_state_dict(again, its)}
        load(content, storage_reader=DistributedFileSystemReader(str(folder)), process_group=again.process_group)
        again.load_state_dict(content["model"])
        its.load_state_dict(FSDP.optim_state_dict_to_load(again, its, content["optimizer"]))
    train(again, its, range(3, 4))
    share = part.to_local().shape[0] / part.shape[0]
    return {"difference": difference(model, again), "share": share}


def main() -> None:
    dist.init_process_group("gloo")
    found = {}
    for degree in (2, 0):
        tsm.state.reset()
        tsm.init({"hybrid_shard_degree": degree})
        for original in (True, False):
            place = OUT / f"{degree}-{original}"
            found[f"{degree}-{original}"] = {
                "replicas": by_replicas(place / "shards", original),
                "one": by_one_replica(place / "replica", original),
            }
    (OUT / f"rank-{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


main()
