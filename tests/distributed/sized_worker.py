# SPDX-License-Identifier: Apache-2.0
"""Modules that parallelize themselves, with Lightning's sizes: Lightning's ModelParallelStrategy, or ours in its place.

``sized_worker.py OUT_DIR stock|own`` writes ``OUT_DIR/rank-R.json``.
"""

import json
import logging
import os
import sys
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import ModelParallelStrategy as FabricModelParallelStrategy
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from lightning_sagemaker import SMDDPFSDPStrategy, SMPShardedStrategy
from lightning_sagemaker._compat.sharding import fully_shard
from lightning_sagemaker.strategies.fsdp import FabricSMDDPFSDPStrategy

sys.path.insert(0, str(Path(__file__).parent))
from lightning_model import error_of
from place import PLACE

OUT, IS_STOCK = Path(sys.argv[1]), sys.argv[2] == "stock"
WORLD, RANK = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
SIZES = {"data_parallel_size": WORLD // 2, "tensor_parallel_size": 2}
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def parallelize(net: nn.Module, mesh) -> nn.Module:
    """As in Lightning's own examples."""
    parallelize_module(net[0], mesh["tensor_parallel"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if mesh["data_parallel"].size() > 1:
        fully_shard(net, mesh=mesh["data_parallel"])
    return net


def shard(net: nn.Module, mesh) -> nn.Module:
    for part in (net[0], net):
        fully_shard(part, mesh=mesh["data_parallel"])
    return net


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


def make_net() -> nn.Module:
    seed_everything(0, verbose=False)
    return nn.Sequential(Block(), nn.Linear(32, 2))


class Model(BoringModel):
    def __init__(self, how=None) -> None:
        super().__init__()
        self.how, self.layer = how, make_net()

    def configure_model(self) -> None:
        if self.how is not None:
            self.how(self.layer, self.device_mesh)


def numbers(module: nn.Module) -> list[str]:
    full = (getattr(parameter, "full_tensor", lambda: parameter)() for parameter in module.state_dict().values())  # noqa: B023
    return [float(value).hex() for tensor in full for value in tensor.flatten()[::7]]


def trained(strategy, how) -> Model:
    model = Model(how)
    trainer = Trainer(strategy=strategy, **PLACE, max_steps=3, limit_val_batches=0, default_root_dir=OUT, **QUIET)
    trainer.fit(model)
    return model


def fit(strategy, how) -> list[str]:
    return numbers(trained(strategy, how))


def reloaded(strategy, how) -> dict[str, object]:
    """A full state dict, as a library loads it that was written for DDP."""
    model = trained(strategy, how)
    with torch.no_grad():
        entire = {key: 2 * getattr(value, "full_tensor", lambda: value)() for key, value in model.state_dict().items()}  # noqa: B023
    model.load_state_dict(entire)
    wrong = {key: value[1:] for key, value in entire.items()}
    return {
        "is right": numbers(model)
        == [float(value).hex() for tensor in entire.values() for value in tensor.flatten()[::7]],
        "kept": all(not isinstance(value, DTensor) for value in entire.values()),
        "wrong": error_of(lambda: model.load_state_dict(wrong)),
    }


def loop(strategy) -> tuple[Fabric, nn.Module]:
    fabric = Fabric(**PLACE, strategy=strategy)
    fabric.launch()
    model = fabric.setup_module(make_net())
    optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), 0.1))
    for step in range(3):
        optimizer.zero_grad()
        torch.manual_seed(step)
        fabric.backward(model(torch.randn(4, 32)).square().mean())
        optimizer.step()
    return fabric, model


def saved() -> dict[str, object]:
    """Into folders that do not exist yet, and where nothing can be written."""
    fabric, model = loop(FabricSMDDPFSDPStrategy())
    path = OUT / "new" / "folder" / "a.ckpt"
    fabric.save(path, {"model": model, "step": 3})
    (OUT / "file").write_text("")
    failed = error_of(lambda: fabric.save(OUT / "file" / "a.ckpt", {"model": model}))
    found = torch.load(path, weights_only=False)
    kept = [float(value).hex() for tensor in found["model"].values() for value in tensor.flatten()[::7]]
    return {
        "is right": kept == numbers(model.module) and found["step"] == 3,
        "files": sorted(file.name for file in path.parent.iterdir()),
        "failed": failed,
        "without a model": error_of(lambda: fabric.save(path, {"step": 3})),
        "address": error_of(lambda: fabric.save("s3://bucket/a.ckpt", {"model": model})),
    }


def refusals() -> dict[str, str | None]:
    wrong = {
        "replicas": lambda: fit(SMDDPFSDPStrategy(data_parallel_size=WORLD + 1), None),
        "tensor": lambda: SMPShardedStrategy(parameters={"tensor_parallel_degree": 4}, tensor_parallel_size=2),
        "number": lambda: SMDDPFSDPStrategy(tensor_parallel_size="2"),
    }
    if WORLD > 2:
        tensor = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        only = lambda net, mesh: parallelize_module(net[0], mesh["tensor_parallel"], tensor)  # noqa: E731
        wrong["not sharded"] = lambda: fit(SMDDPFSDPStrategy(tensor_parallel_size=2), only)
    return {name: error_of(make) for name, make in wrong.items()}


def main() -> None:
    torch.set_num_threads(1)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addHandler(handler)
    trainers = [ModelParallelStrategy] if IS_STOCK else [SMDDPFSDPStrategy, SMPShardedStrategy]
    ours, flat = (FabricModelParallelStrategy if IS_STOCK else FabricSMDDPFSDPStrategy), {"data_parallel_size": WORLD}
    one_file = {"save_distributed_checkpoint": False}
    found: dict = {
        "Trainer, matrices": [fit(kind(**SIZES), parallelize) for kind in trainers],
        "Trainer, shards": [fit(kind(**flat, tensor_parallel_size=1), shard) for kind in trainers],
        "Fabric, matrices": [numbers(loop(ours(parallelize_fn=parallelize, **SIZES, **one_file))[1].module)],
        "Fabric, shards": [numbers(loop(ours(shard, **flat, tensor_parallel_size=1))[1].module)],
    }
    if not IS_STOCK:
        fit(SMDDPFSDPStrategy(), None)
        found["lines"] = lines.copy()
        found["reloaded"] = [
            reloaded(SMDDPFSDPStrategy(), None),
            reloaded(SMDDPFSDPStrategy(**SIZES), parallelize),
            reloaded(SMPShardedStrategy(parameters={"hybrid_shard_degree": 2}), None),
        ]
        found |= {"saved": saved(), "refusals": refusals()}
    (OUT / f"rank-{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
