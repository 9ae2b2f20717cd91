# SPDX-License-Identifier: Apache-2.0
"""What every rank runs of scripts on the shim whose sums are reduced as a variable says; hosts of two processes each.

``all_reduce_worker.py OUT_DIR`` writes ``OUT_DIR/rank-R.json``.
"""

import hashlib
import json
import logging
import os
import sys
import warnings
from pathlib import Path

OUT, RANK, WORLD = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PER_HOST = 2
os.environ.update(GROUP_RANK=str(RANK // PER_HOST), GROUP_WORLD_SIZE=str(WORLD // PER_HOST))
os.environ.update(LOCAL_RANK=str(RANK % PER_HOST), LOCAL_WORLD_SIZE=str(PER_HOST))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from lightning_sagemaker.smdistributed import importer  # noqa: E402

importer.install()
import smdistributed.dataparallel.torch.distributed as sdp  # noqa: E402
import smdistributed.dataparallel.torch.torch_smddp  # noqa: E402, F401 - registers the backend
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as OldDDP  # noqa: E402

warnings.filterwarnings("ignore")
SETTINGS = {
    "plain": {},
    "hierarchical": {"LIGHTNING_SAGEMAKER_REDUCTION": "hierarchical"},
    "hierarchical bf16": {
        "LIGHTNING_SAGEMAKER_REDUCTION": "hierarchical",
        "LIGHTNING_SAGEMAKER_COMPRESSION": "bf16",
    },
    "flat fp16": {"LIGHTNING_SAGEMAKER_COMPRESSION": "fp16"},
    "auto": {"LIGHTNING_SAGEMAKER_REDUCTION": "auto"},
}
LINES = []


class Lines(logging.Handler):
    def emit(self, record):
        LINES.append(record.getMessage())


def bits(tensor) -> str:
    return hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()


def vector(rank: int, whole: bool = False):
    random = torch.Generator().manual_seed(rank)
    if whole:
        return torch.randint(-100, 100, (203, 201), generator=random).float()
    return torch.randn(203, 201, generator=random)


def error(tensor, expected) -> float:
    return ((tensor.double() - expected).abs() / sum(vector(rank).double().abs() for rank in range(WORLD))).max().item()


def gradients(wrap) -> torch.Tensor:
    torch.manual_seed(0)
    model = wrap(torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.Tanh(), torch.nn.Linear(200, 200)))
    data = torch.randn(8, 200, generator=torch.Generator().manual_seed(RANK))
    for _ in range(2):  # DDP makes its buckets anew in the second
        model.zero_grad()
        model(data).square().mean().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def measured(number: int) -> dict:
    store = f"file://{OUT}/store-{number}"
    dist.init_process_group("smddp", init_method=store, rank=RANK, world_size=WORLD)
    total = sum(vector(rank).double() for rank in range(WORLD))
    small = torch.ones(3)
    dist.all_reduce(small)
    silent = not any("sums over all" in line for line in LINES)
    summed, whole, old, mean, least = vector(RANK), vector(RANK, whole=True), vector(RANK), vector(RANK), vector(RANK)
    dist.all_reduce(summed)
    dist.all_reduce(whole)
    sdp.all_reduce(old)
    sdp.all_reduce(mean, sdp.ReduceOp.AVERAGE)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    strided = vector(RANK).t()
    dist.all_reduce(strided)
    found = {
        "small": small.tolist(),
        "silent": silent,
        "error": max(error(summed, total), error(old, total), error(mean * WORLD, total), error(strided.t(), total)),
        "whole": torch.equal(whole, sum(vector(rank, whole=True) for rank in range(WORLD))),
        "least": torch.equal(least, torch.stack([vector(rank) for rank in range(WORLD)]).amin(0)),
        "old is new": torch.equal(old, summed),
        "bits": bits(summed),
    }
    new, old = gradients(torch.nn.parallel.DistributedDataParallel), gradients(OldDDP)
    found |= {"gradients": new.norm().item(), "old gradients": old.norm().item(), "gradient bits": bits(new)}
    found["numbers"] = new[::997].tolist()
    found["lines"] = [line for line in LINES if "sums over all" in line]
    LINES.clear()
    dist.barrier()
    dist.destroy_process_group()
    return found


def main() -> None:
    torch.set_num_threads(1)
    for name in ("lightning_sagemaker", "lightning.pytorch", "lightning.fabric", "lightning_utilities"):
        logging.getLogger(name).addHandler(Lines())
    found = {}
    for number, (name, variables) in enumerate(SETTINGS.items()):
        os.environ.update(variables)
        found[name] = measured(number)
        for variable in variables:
            del os.environ[variable]
    os.environ["LIGHTNING_SAGEMAKER_REDUCTION"] = "tree"
    try:
        dist.init_process_group("smddp", init_method=f"file://{OUT}/store-last", rank=RANK, world_size=WORLD)
    except ValueError as raised:
        found["wrong"] = str(raised)
    found["no group"] = not dist.is_initialized()
    (OUT / f"rank-{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
