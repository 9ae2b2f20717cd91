# SPDX-License-Identifier: Apache-2.0
"""What every rank runs: ``"smddp_fsdp"``, or in its place Lightning's ModelParallelStrategy and a loop of plain torch.

``fsdp_worker.py OUT_DIR stock|own CASES`` writes ``OUT_DIR/rank-R.json``; ``CASES`` are names, with commas between.
"""

import contextlib
import json
import logging
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from lightning.fabric import Fabric
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchmetrics import Metric

import lightning_sagemaker  # noqa: F401 - registers the strategies
from lightning_sagemaker._compat.sharding import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from lightning_sagemaker.collectives import gathering
from lightning_sagemaker.strategies.fsdp import FabricSMDDPFSDPStrategy, SMDDPFSDPStrategy

sys.path.insert(0, str(Path(__file__).parent))
from lightning_model import Losses, Model, error_of, samples
from models import make_batch, make_model
from place import ACCELERATOR, DEVICE, PLACE

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
OUT, IS_STOCK = Path(sys.argv[1]), sys.argv[2] == "stock"
WORLD, RANK = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
HYBRID = {"hybrid_shard_degree": WORLD // 2}
STEPS = 4

# name -> model, what our strategy is given, what fully_shard is given, what the Trainer is given
CASES = {
    "plain": ("bert", {}, {}, {"gradient_clip_val": 0.5}),
    "tied": ("bert-mlm", {}, {}, {}),
    "encoder and decoder": ("t5", {}, {}, {}),
    "no blocks": ("albert", {}, {}, {}),
    "bf16-mixed": ("bert", {}, {"mp_policy": BF16}, {"precision": "bf16-mixed"}),
    "bf16-true": ("bert", {}, {}, {"precision": "bf16-true", "gradient_clip_val": 0.5}),
    "offload": ("bert", {"cpu_offload": True}, {"offload_policy": CPUOffloadPolicy(pin_memory=False)}, {}),
    "recompute": ("llama", {"activation_checkpointing": True}, {}, {}),
    "kept": ("llama", {"reshard_after_forward": False}, {"reshard_after_forward": False}, {}),
    "hybrid": ("bert", HYBRID, {}, {"gradient_clip_val": 0.5}),
    "accumulated": ("bert", {}, {}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}),
    "named units": ("plain", {"auto_wrap_policy": {nn.LayerNorm, nn.Linear}}, {}, {}),
    "own units": ("plain", {}, {}, {}),
}


def units(name: str, net: nn.Module) -> list[nn.Module]:
    """Written out by hand: what the automatic policy must find."""
    return {
        "bert": lambda: [*net.bert.encoder.layer],
        "bert-mlm": lambda: [*net.bert.encoder.layer],
        "t5": lambda: [*net.encoder.block, *net.decoder.block],
        "albert": list,
        "llama": lambda: [*net.model.layers],
        "plain": lambda: [part for part in net.modules() if isinstance(part, nn.LayerNorm | nn.Linear)],
    }[name]()


class Sharded(Model):
    """The same, sharded by the user's own code."""

    def __init__(self, name: str, mesh_of=None, **options) -> None:
        super().__init__(name)
        self.options, self.mesh_of = options, mesh_of

    def configure_model(self) -> None:
        mesh = self.mesh_of() if self.mesh_of else self.device_mesh["data_parallel"]
        for unit in [*units(self.name, self.net), self.net]:
            fully_shard(unit, mesh=mesh, **self.options)


class Stock(ModelParallelStrategy):
    """Lightning's, and torch's own way to accumulate gradients, which it has for Fabric only.

    Lightning's moves all to the GPU, where torch refuses shards that are to be offloaded.
    """

    def model_to_device(self):
        if self.model.options.get("offload_policy") is None:
            super().model_to_device()
            return
        for part in self.model.modules():
            part._buffers.update({name: buffer.to(self.root_device) for name, buffer in part._buffers.items()})
            if isinstance(part, Metric):
                part.to(self.root_device)

    @contextlib.contextmanager
    def block_backward_sync(self):
        self.model.net.set_requires_gradient_sync(False)
        yield
        self.model.net.set_requires_gradient_sync(True)


def two_dimensions():
    return dist.device_mesh.init_device_mesh(ACCELERATOR, (2, WORLD // 2), mesh_dim_names=("copies", "shards"))


def local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def bits(parameters) -> list[str]:
    """Each number of this process, to the last digit."""
    flat = torch.cat([local(parameter.detach()).double().flatten() for parameter in parameters])
    return [value.hex() for value in flat[:: max(len(flat) // 500, 1)].tolist()] + [float(flat.sum()).hex()]


def fit(case: str) -> dict:
    name, ours, theirs, options = CASES[case]
    seed_everything(0, verbose=False)
    by_hand = IS_STOCK or case == "own units"
    module = Sharded(name, two_dimensions if case == "hybrid" else None, **theirs) if by_hand else Model(name)
    strategy = Stock(WORLD, 1) if IS_STOCK else SMDDPFSDPStrategy(**ours)
    data, losses = samples(name), Losses()
    loader = DataLoader(data, 4, sampler=DistributedSampler(data, WORLD, RANK, shuffle=False))
    trainer = Trainer(
        strategy=strategy,
        **PLACE,
        max_steps=STEPS,
        callbacks=[losses],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=2,
        default_root_dir=OUT,
        **options,
    )
    trainer.fit(module, loader, DataLoader(data[:4], 4) if name == "bert" else None)
    sharded = sum(isinstance(part, FSDPModule) for part in module.modules())
    return {"losses": [loss.hex() for loss in losses.values], "weights": bits(module.parameters()), "units": sharded}


def loop() -> dict:
    """A plain loop: Fabric's with our strategy, or torch alone."""
    seed_everything(0, verbose=False)
    model = make_model("bert")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if IS_STOCK:
        mesh = dist.device_mesh.init_device_mesh(ACCELERATOR, (WORLD,))
        for unit in [*units("bert", model), model]:
            fully_shard(unit, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    else:
        fabric = Fabric(**PLACE, strategy=FabricSMDDPFSDPStrategy())
        fabric.launch()
        model, optimizer = fabric.setup(model, optimizer)
    losses = []
    for step in range(STEPS):
        for part in range(2):
            batch = make_batch("bert", samples=4, seed=step * 2 * WORLD + part * WORLD + RANK)
            batch = {name: tensor.to(DEVICE) for name, tensor in batch.items()}
            if IS_STOCK:
                model.set_requires_gradient_sync(part == 1)
                loss = model(**batch)["loss"]
                loss.backward()
            else:
                with fabric.no_backward_sync(model, enabled=part == 0):
                    loss = model(**batch)["loss"]
                    fabric.backward(loss)
            losses.append(float(loss).hex())
        if IS_STOCK:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        else:
            fabric.clip_gradients(model, optimizer, max_norm=0.5)
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, "weights": bits(model.parameters())}


def traffic() -> dict:
    """Gathers as FSDP asks for them, as the group counts them, and as the shim's engines have taken them."""
    asked, limit = [], int(os.environ["SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES"])
    gather = gathering.GatheringProcessGroup._gather
    groups = set()

    def counted(self, method, output, tensor, *args):
        groups.add(self)
        eligible = tensor.numel() * tensor.element_size() <= limit and tensor.is_floating_point() and self.size() > 1
        asked.append((eligible, output.numel() * output.element_size()))
        return gather(self, method, output, tensor, *args)

    gathering.GatheringProcessGroup._gather = counted
    before = gathering.TRAFFIC.engine, gathering.TRAFFIC.engine_bytes
    fit("plain")
    taken = gathering.TRAFFIC.engine - before[0]
    taken_bytes = gathering.TRAFFIC.engine_bytes - before[1]
    gathering.GatheringProcessGroup._gather = gather
    return {
        "asked": len(asked),
        "eligible": sum(eligible for eligible, _ in asked),
        "eligible_bytes": sum(size for eligible, size in asked if eligible),
        "taken": taken,
        "taken_bytes": taken_bytes,
        "shim": sum(group._engine.gathered for group in groups if group._engine is not None),
        "total": gathering.TRAFFIC.engine,
    }


def refusals() -> dict:
    return {
        "units": error_of(lambda: fit_with({"auto_wrap_policy": {nn.Conv2d}}, {})),
        "precision": error_of(by_name),
        "partitions": error_of(lambda: SMDDPFSDPStrategy(parameters={"partitions": 2})),
        "degree": error_of(lambda: fit_with({"hybrid_shard_degree": 3}, {})),
        "keyword": error_of(lambda: SMDDPFSDPStrategy(cpu_offlaod=True)),
    }


def by_name() -> None:
    """Lightning does not look at the precision where it is given a name."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    Trainer(strategy="smddp_fsdp", **PLACE, precision="64-true", **quiet).fit(Model("bert"))


def fit_with(ours: dict, options: dict) -> None:
    CASES["refused"] = ("bert", ours, {}, options)
    fit("refused")


def main() -> None:
    torch.set_num_threads(1)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero"):
        logging.getLogger(name).addHandler(handler)
    found: dict = {case: fit(case) for case in sys.argv[3].split(",")}
    found["loop"] = loop()
    if not IS_STOCK:
        found |= {"traffic": traffic(), "refusals": refusals(), "lines": lines, "backend": dist.get_backend()}
    (OUT / f"rank-{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
