# SPDX-License-Identifier: Apache-2.0
"""What every rank runs: batches and results between stages, against pickled objects.

``structure_worker.py OUT_DIR`` writes ``OUT_DIR/rank-R.json``.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from lightning_sagemaker.parallel.degrees import PipelineError
from lightning_sagemaker.parallel.structure import StructureChannel

OUT = Path(sys.argv[1])
STEPS = 10


def batch(step: int, length: int = 12) -> dict:
    random = torch.Generator().manual_seed(step)
    return {
        "images": torch.rand(8, 3, 64, 64, generator=random),  # larger than what is packed
        "ids": torch.randint(0, 100, (8, length), generator=random),
        "mask": torch.rand(8, length, generator=random) > 0.5,
        "half": torch.rand(3, generator=random).to(torch.bfloat16).t(),
        "strided": torch.rand(4, 6, generator=random).t(),
        "empty": torch.empty(0, 4),
        "number": torch.tensor(step),
        "names": ["a", "b"],
        "weights": (0.5 * step, None),
    }


def alike(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and all(map(alike, one, other))
    return type(one) is type(other) and one == other


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    channel = StructureChannel(dist.group.WORLD, list(range(world)), world - 1, rank)
    is_source = rank == world - 1
    found = {"equal": [], "pickled": [], "objects": 0}

    def share(value, local=None) -> None:
        shared = channel.share(value if is_source else local)
        found["equal"].append(alike(shared, value))
        found["pickled"].append(channel.pickled)

    for step in range(STEPS):
        share(batch(step), local="of no interest")
    found["bytes"] = channel.sent_bytes
    share(batch(1, length=20))  # another length: shapes are sent, no structure
    share([batch(2), 1.5])
    share(batch(3))
    for number in range(40):  # more structures than are remembered
        share({"n": number, "x": torch.ones(2) * number})
    share(batch(4))
    try:
        channel.share({"function": lambda: None})
    except PipelineError as error:
        found["error"] = str(error)
    share(batch(5))
    made = c10d._object_to_tensor

    def counted(*args):
        found["objects"] += 1
        return made(*args)

    c10d._object_to_tensor = counted
    for step in range(STEPS):
        dist.broadcast_object_list([batch(step) if is_source else None], world - 1)
    found["payload"] = sum(value.nbytes for value in batch(0).values() if isinstance(value, torch.Tensor))
    (OUT / f"rank-{rank}.json").write_text(json.dumps(found))
    time.sleep(0.2)  # torch 2.5.1 joins threads that free the last tensors, and keeps the GIL from them
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
