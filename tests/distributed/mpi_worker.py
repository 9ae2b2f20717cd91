# SPDX-License-Identifier: Apache-2.0
"""Steps under mpirun on hosts of which nobody has told it the first; prints the last weights of each strategy."""

import json
import os
import socket

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.plugins.environments import MPIEnvironment

import lightning_sagemaker  # noqa: F401

# One machine stands for two: MPI is told so by variables, Lightning by names, which are addresses here.
socket.gethostname = lambda: f"127.0.0.{1 + int(os.environ['OMPI_COMM_WORLD_RANK'])}"


class Own(MPIEnvironment):
    """What a user brings is kept."""


def weights(strategy: str, **settings) -> list[float]:
    seed_everything(1, verbose=False)
    trainer = Trainer(
        strategy=strategy, accelerator="cpu", devices=1, max_steps=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **settings,
    )  # fmt: skip
    trainer.fit(model := BoringModel())
    assert trainer.world_size == 2
    assert isinstance(trainer.strategy.cluster_environment, Own) == bool(settings.get("plugins"))
    torch.distributed.destroy_process_group()
    for name in ("MASTER_ADDR", "MASTER_PORT"):  # Lightning exports what it found
        os.environ.pop(name, None)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


results = {
    "ddp": weights("ddp", num_nodes=2),
    "smddp": weights("smddp"),
    "sagemaker": weights("sagemaker"),
    "with a plugin": weights("smddp", num_nodes=2, plugins=[Own()]),
}
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    print(json.dumps(results))
