# SPDX-License-Identifier: Apache-2.0
"""A user's script on a cluster: it trains and writes ``rank-R.json`` into ``--out``, or into the job's output folder."""

import argparse
import json
import os
import socket
import sys
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

import lightning_sagemaker
from lightning_sagemaker import SageMakerJob

SAMPLES, GLOBAL_BATCH, STEPS = 32, 8, 4


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.seen = []

    def training_step(self, batch, _):
        self.seen += batch[1].tolist()
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        data = TensorDataset(torch.linspace(-1, 1, SAMPLES * 4).reshape(SAMPLES, 4), torch.arange(SAMPLES))
        return DataLoader(data, batch_size=GLOBAL_BATCH // self.trainer.world_size)


def refusals(strategy: str) -> dict[str, str]:
    """What a Trainer says to numbers that contradict the job."""
    messages = {}
    for name, arguments in {"num_nodes": {"num_nodes": 3}, "devices": {"devices": 5}}.items():
        try:
            Trainer(strategy=strategy, accelerator="cpu", logger=False, **arguments)
        except Exception as error:  # the test looks at it
            messages[name] = f"{type(error).__name__}: {error}"
    return messages


def fabric_facts(strategy: str) -> dict[str, object]:
    """Gradients and ranks under the twin for Fabric."""
    fabric = Fabric(strategy=strategy, accelerator="cpu")
    fabric.launch()
    model = fabric.setup(Model().net)
    data = torch.linspace(-1, 1, 32).reshape(8, 4).chunk(fabric.world_size)[fabric.global_rank]
    fabric.backward(model(data).square().mean())
    return {
        "world_size": fabric.world_size,
        "rank": fabric.global_rank,
        "node_rank": fabric.node_rank,
        "strategy": type(fabric.strategy).__name__,
        "gradients": torch.cat([p.grad.flatten() for p in model.parameters()]).tolist(),
    }


variables, arguments = dict(os.environ), sys.argv[1:]
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--out", type=Path)
parser.add_argument("--strategy", default="sagemaker")
parser.add_argument("--devices", default="auto")
parser.add_argument("--twins", action="store_true", help="Fabric and refusals as well")
options, _ = parser.parse_known_args()  # the rest stands for hyperparameters
early_rank = lightning_sagemaker._lightning.rank_zero_only.rank
result = {"refusals": refusals(options.strategy)} if options.twins else {}
quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
trainer = Trainer(strategy=options.strategy, accelerator="cpu", devices=options.devices, max_steps=STEPS, **quiet)
model = Model()
trainer.fit(model)
job = SageMakerJob.from_environment()
result |= {
    "rank": trainer.global_rank,
    "early_rank": early_rank,
    "local_rank": trainer.local_rank,
    "node_rank": trainer.node_rank,
    "world_size": trainer.world_size,
    "num_nodes": trainer.num_nodes,
    "num_devices": trainer.num_devices,
    "strategy": type(trainer.strategy).__name__,
    "environment": type(trainer.strategy.cluster_environment).__name__,
    "backend": torch.distributed.get_backend(),
    "weights": torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(),
    "seen": model.seen,
    "host": job.current_host,
    "hosts": job.hosts,
    "distribution": job.distribution.value,
    "launcher": job.launcher.value,
    "simulated": job.simulated,
    "hostname": socket.gethostname(),
    "address": job.main_address,
    "hyperparameters": dict(job.hyperparameters),
    "channels": sorted(job.channels),
    "root": os.environ.get("SAGEMAKER_BASE_DIR"),
    "variables": variables,
    "argv": arguments,
    "cwd": os.getcwd(),
}
if options.twins:
    result["fabric"] = fabric_facts(options.strategy)
out = options.out or job.output_dir
out.mkdir(parents=True, exist_ok=True)
(out / f"rank-{trainer.global_rank}.json").write_text(json.dumps(result))
