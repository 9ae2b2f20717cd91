# SPDX-License-Identifier: Apache-2.0
"""Scripts for AWS's library whose parameters are sharded, or whose layers are AWS's own, and the same training without it.

``smp_parts_worker.py OUT_DIR shards|layers`` writes ``OUT_DIR/rank-R.json``.
"""

import copy
import json
import os
import sys
import warnings
from pathlib import Path

import torch
from torch import nn

from lightning_sagemaker.smdistributed import importer

importer.install()
sys.path.insert(0, str(Path(__file__).parent))
import smdistributed.modelparallel.torch as smp  # noqa: E402
from lightning_model import error_of  # noqa: E402

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
OUT, SCRIPT = Path(sys.argv[1]), sys.argv[2]
STEPS, BATCH, CLIP = 6, 8, 0.3


class Network(nn.Module):
    """An embedding, blocks, a head, whose sizes two processes do not share evenly."""

    def __init__(self, linear=nn.Linear, embedding=nn.Embedding) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = embedding(11, 6, padding_idx=0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2))
        self.head = linear(6, 3)
        torch.manual_seed(1)
        for parameter in self.parameters():  # the same, whatever its layers draw
            nn.init.normal_(parameter, std=0.5)

    def forward(self, numbers):
        hidden = self.embed(numbers).mean(1)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden)


def samples(step: int):
    random = torch.Generator().manual_seed(step)
    return torch.randint(0, 11, (BATCH, 5), generator=random), torch.randint(0, 3, (BATCH,), generator=random)


def build(network) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), lr=0.05)


def plain() -> dict:
    network = Network()
    optimizer, losses, norms = build(network), [], []
    for step in range(STEPS):
        numbers, target = samples(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(numbers), target)
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(network.parameters(), CLIP)))
        optimizer.step()
        losses.append(float(loss))
    return {"losses": losses, "norms": norms, "weights": sums(network.state_dict())}


def sums(state) -> dict:
    return {name: float(value.double().sum()) for name, value in state.items() if isinstance(value, torch.Tensor)}


@smp.step
def train_step(model, numbers, target):
    loss = nn.functional.cross_entropy(model(numbers), target)
    model.backward(loss)
    return loss


def train(model, optimizer, steps, clip=False) -> tuple[list, list]:
    losses, norms = [], []
    share = slice(smp.dp_rank() * BATCH // smp.dp_size(), (smp.dp_rank() + 1) * BATCH // smp.dp_size())
    for step in steps:
        numbers, target = samples(step)
        optimizer.zero_grad()
        loss = train_step(model, numbers[share], target[share]).reduce_mean()
        if clip:
            norms.append(float(optimizer.clip_master_grads(CLIP)))
        optimizer.step()
        if not clip:
            norms.append(float(optimizer._global_grad_norm))
        losses.append(sum(smp.allgather(loss.item(), smp.DP_GROUP)) / smp.dp_size())
    return losses, norms


def shards() -> dict:
    """Clipped by the optimizer itself, as AWS's is; going on from parts and from whole states."""
    parameters = {"microbatches": 2, "ddp": True, "sdp_gradient_clipping": CLIP}
    refused = error_of(lambda: smp.init({**parameters, "sharded_data_parallel_degree": 2, "tensor_parallel_degree": 2}))
    smp.init({**parameters, "sharded_data_parallel_degree": 2})
    network = Network()
    early = build(network)  # before the model is wrapped
    model = smp.DistributedModel(network)
    optimizer = smp.DistributedOptimizer(early)
    losses, norms = train(model, optimizer, range(STEPS // 2))
    smp.save_checkpoint(OUT, "half", partial=True, model=model, optimizer=optimizer, user_content={"step": 3})
    smp.save_checkpoint(OUT, "whole", partial=False, model=model)
    whole = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    rest = train(model, optimizer, range(STEPS // 2, STEPS))
    found = {
        "losses": losses + rest[0],
        "norms": norms + rest[1],
        "weights": sums(model.state_dict()),
        "own": sum(one.to_local().numel() for one in model.parameters()),
        "all": sum(one.numel() for one in Network().parameters()),
        "states": sum(v.to_local().numel() for entry in early.state.values() for k, v in entry.items() if k != "step"),
        "degree": smp.state.cfg.sharded_data_parallel_degree,
        "refused": refused,
    }
    again = {}
    for name in ("partial", "states", "file"):
        model = smp.DistributedModel(Network())
        optimizer = smp.DistributedOptimizer(build(model))
        if name == "partial":
            assert smp.resume_from_checkpoint(OUT, tag="half", partial=True) == {"step": 3}
        elif name == "states":
            model.load_state_dict(whole["model"])
            optimizer.load_state_dict(whole["optimizer"])
        else:
            smp.resume_from_checkpoint(OUT, tag="whole", partial=False)
        again[name] = train(model, optimizer, range(STEPS // 2, STEPS))[0]
    found["files"] = sorted(path.name for path in (OUT / "half_partial").iterdir())
    found["stepped"] = error_of(lambda: _stepped_before())
    return {**found, "again": again}


def _stepped_before() -> None:
    network = Network()
    optimizer = build(network)
    network(samples(0)[0]).sum().backward()
    optimizer.step()
    smp.DistributedModel(network)
    smp.DistributedOptimizer(optimizer)


def layers() -> dict:
    """Each rank has a part of the head's and of the embedding's matrix."""
    smp.init({"tensor_parallel_degree": 2, "microbatches": 2, "ddp": True})
    model = smp.DistributedModel(Network(smp.nn.DistributedLinear, smp.nn.DistributedEmbedding))
    optimizer = smp.DistributedOptimizer(build(model))
    losses, norms = train(model, optimizer, range(STEPS), clip=True)
    own = {name: list(one.shape) for name, one in model.local_named_parameters() if model.is_distributed_parameter(one)}
    builders = {
        "in_features": lambda: smp.nn.DistributedLinear(5, 2),
        "max_norm": lambda: smp.nn.DistributedEmbedding(5, 2, max_norm=1.0),
        "layer": lambda: smp.nn.DistributedTransformerLayer(),
    }
    return {
        "losses": losses,
        "norms": norms,
        "weights": sums(model.state_dict()),
        "own": own,
        "refused": {name: error_of(build_one) for name, build_one in builders.items()},
    }


if __name__ == "__main__":
    expected = plain()
    found = {"shards": shards, "layers": layers}[SCRIPT]()
    (OUT / f"rank-{os.environ['RANK']}.json").write_text(json.dumps({"expected": expected, "found": found}))
