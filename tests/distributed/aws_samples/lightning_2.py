# SPDX-License-Identifier: Apache-2.0
"""In the style of AWS's guide for Lightning 2 with SMDDP: ``lightning_2.py ddp|fsdp``.

The guide divides by ``SM_NUM_GPUS``, which is 0 on hosts without GPUs; this script counts the processes of its host.
"""

import os
import sys
from functools import partial
from unittest import mock

import lightning as pl
import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 - registers the backend
import torch
from common import EPOCHS, RATE, loader, net, report, weights
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy


class OnCPU(FSDPStrategy):
    """Lightning's own: it refuses ``FSDPStrategy`` itself, by its type, where no GPU is asked for.

    FSDP is told to stay on the CPU, where Lightning gives it the number of a GPU.
    """

    def _setup_model(self, model):
        initialize = FSDP.__init__
        cpu = {"device_id": torch.device("cpu")}
        with mock.patch.object(FSDP, "__init__", lambda fsdp, *a, **kwargs: initialize(fsdp, *a, **{**kwargs, **cpu})):
            return super()._setup_model(model)


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()

    def training_step(self, batch, _):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.trainer.model.parameters(), lr=RATE)

    def on_train_end(self):
        with FSDP.summon_full_params(self.trainer.model, writeback=False):
            facts = {"backend": torch.distributed.get_backend(), "world_size": self.trainer.world_size}
            report(weights=weights(self), environment=type(self.trainer.strategy.cluster_environment).__name__, **facts)


env = LightningEnvironment()
env.world_size = lambda: int(os.environ["WORLD_SIZE"])
env.global_rank = lambda: int(os.environ["RANK"])
world_size = int(os.environ["WORLD_SIZE"])
num_gpus = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"])
if sys.argv[1] == "ddp":
    strategy = DDPStrategy(cluster_environment=env, process_group_backend="smddp")
else:
    policy = partial(size_based_auto_wrap_policy, min_num_params=10)
    strategy = OnCPU(auto_wrap_policy=policy, process_group_backend="smddp", cluster_environment=env)
trainer = pl.Trainer(
    max_epochs=EPOCHS,
    strategy=strategy,
    devices=num_gpus,
    num_nodes=world_size // num_gpus,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Model(), loader(env.global_rank(), world_size))
