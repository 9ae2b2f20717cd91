# SPDX-License-Identifier: Apache-2.0
"""A script as AWS's documentation writes it for Lightning and SMDDP: ``aws_recipe.py PACKAGE patched|plain OUT``.

``patched`` corrects ``LightningEnvironment`` by hand and gives Lightning's own DDPStrategy the backend ``smddp``;
``plain`` is the same script without that, with ``strategy="smddp"``.
"""

import importlib
import json
import os
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

package, mode, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])
pl = importlib.import_module({"lightning": "lightning.pytorch"}.get(package, package))

import lightning_sagemaker  # noqa: E402,F401 - after the user's Lightning, as in a script that adds one line
from lightning_sagemaker.smdistributed import importer  # noqa: E402

importer.install()


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        pl.seed_everything(3, verbose=False)
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.linspace(-1, 1, 64).reshape(16, 4)), batch_size=2)


world_size, devices = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
if mode == "patched":
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 - registers the backend

    environments = importlib.import_module(
        f"{package}.fabric.plugins.environments" if package == "lightning" else "lightning_fabric.plugins.environments"
    )
    env = environments.LightningEnvironment()
    env.world_size = lambda: int(os.environ["WORLD_SIZE"])
    env.global_rank = lambda: int(os.environ["RANK"])
    strategy = pl.strategies.DDPStrategy(cluster_environment=env, process_group_backend="smddp")
    arguments = {"devices": devices, "num_nodes": world_size // devices}
else:
    strategy, arguments = "smddp", {}

trainer = pl.Trainer(
    strategy=strategy,
    accelerator="cpu",
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    **arguments,
)
model = Model()
trainer.fit(model)
result = {
    "weights": model.layer.weight.detach().flatten().tolist(),
    "world_size": torch.distributed.get_world_size(),
    "backend": torch.distributed.get_backend(),
    "environment": type(trainer.strategy.cluster_environment).__name__,
}
out.mkdir(parents=True, exist_ok=True)
(out / f"rank-{trainer.global_rank}.json").write_text(json.dumps(result))
