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
import transformers
from torch import nn

from lightning_sagemaker.smdistributed import importer

try:
    import peft
except ImportError:
    peft = None
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


def train_plainly(model, numbers, target):
    """Without a step."""
    loss = nn.functional.cross_entropy(model(numbers), target)
    loss.backward()
    return loss


def train(model, optimizer, steps, clip=False, call=train_step) -> tuple[list, list]:
    losses, norms = [], []
    share = slice(smp.dp_rank() * BATCH // smp.dp_size(), (smp.dp_rank() + 1) * BATCH // smp.dp_size())
    for step in steps:
        numbers, target = samples(step)
        optimizer.zero_grad()
        loss = call(model, numbers[share], target[share])
        loss = loss.reduce_mean() if call is train_step else loss
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
    enabled = Network()  # torch's layers, those that the script enables
    smp.set_tensor_parallelism(enabled.head)
    smp.set_tensor_parallelism(enabled.embed)
    model = smp.DistributedModel(enabled)
    alone = train(model, smp.DistributedOptimizer(build(model)), range(STEPS), clip=True, call=train_plainly)
    chain = in_turns()
    builders = {
        "none": lambda: train(*(wrapped := smp.DistributedModel(Network()), build(wrapped)), range(1)),
        "in_features": lambda: smp.nn.DistributedLinear(5, 2),
        "max_norm": lambda: smp.nn.DistributedEmbedding(5, 2, max_norm=1.0),
        "layer": lambda: smp.nn.DistributedTransformerLayer(),
    }
    return {
        "losses": losses,
        "norms": norms,
        "weights": sums(model.state_dict()),
        "own": own,
        "chain": chain,
        "alone": [*alone, sums(model.state_dict()), sum(map(model.is_distributed_parameter, model.local_parameters()))],
        "models": {name: shared_model(*case) for name, case in SHARED_MODELS.items()},
        "refused": {name: error_of(build_one) for name, build_one in builders.items()},
    }


def in_turns() -> float:
    """Layers that are the model's blocks themselves, in a step and without one; the largest difference from one process."""

    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3))

    def run(network, call, rows) -> dict:
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for step in range(4):
            numbers, target = samples(step)
            optimizer.zero_grad()
            call(step)(network, nn.functional.one_hot(numbers, 11).float().mean(1)[rows, :6], target[rows])
            optimizer.step()
        return network.state_dict()

    whole = run(make(), lambda step: train_plainly, slice(None))
    network = make()
    smp.set_tensor_parallelism(network)
    share = slice(smp.dp_rank() * BATCH // smp.dp_size(), (smp.dp_rank() + 1) * BATCH // smp.dp_size())
    found = run(smp.DistributedModel(network), lambda step: (train_plainly, train_step)[step % 2], share)
    return max(float((found[name] - value).abs().max()) for name, value in whole.items())


SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 20,
    "max_position_embeddings": 8,
}
DECODER = {**SIZES, "num_key_value_heads": 2, "use_cache": False}
LATENT = {"kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4, "q_lora_rank": None}
EXPERTS = {"n_routed_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "first_k_dense_replace": 1}
SHARED_MODELS = {
    "norms of heads": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config, {**DECODER, "head_dim": 8}),
    "a key of all heads": (
        transformers.DeepseekV2ForCausalLM,
        transformers.DeepseekV2Config,
        DECODER | LATENT | EXPERTS,
    ),
    "adapters": (transformers.LlamaForCausalLM, transformers.LlamaConfig, DECODER, ["q_proj", "o_proj", "up_proj"]),
}
"""What a rank has complete and uses for its own heads only, and low-rank adapters of sharded matrices."""


def shared_model(kind, config, sizes, adapted=()) -> float | None:
    """The largest difference from one process, as a part of what training has changed; outside of steps."""

    def make():
        torch.manual_seed(0)
        model = kind(config(**sizes))
        if adapted:
            model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=adapted, init_lora_weights=False))
        return model

    def step(model, optimizer, rows) -> None:
        optimizer.zero_grad()
        ids = torch.randint(0, 20, (BATCH, 8), generator=torch.Generator().manual_seed(1))[rows]
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()

    if adapted and peft is None:
        return None
    first, plain, network = make().state_dict(), make(), make()
    smp.set_tensor_parallelism(network)
    model = smp.DistributedModel(network)
    for one, rows in (
        (plain, slice(None)),
        (model, slice(smp.dp_rank() * BATCH // 2, (smp.dp_rank() + 1) * BATCH // 2)),
    ):
        optimizer = torch.optim.SGD([weight for weight in one.parameters() if weight.requires_grad], lr=0.5)
        for _ in range(2):
            step(one, optimizer, rows)
    found = model.state_dict()
    moved = {name: (value - first[name]).norm() for name, value in plain.state_dict().items()}
    away = {name: (value - found[name]).norm() for name, value in plain.state_dict().items()}
    return max(float(away[name] / (moved[name] + 1e-5)) for name in away)


if __name__ == "__main__":
    expected = plain()
    found = {"shards": shards, "layers": layers}[SCRIPT]()
    (OUT / f"rank-{os.environ['RANK']}.json").write_text(json.dumps({"expected": expected, "found": found}))
