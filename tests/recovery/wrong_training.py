# SPDX-License-Identifier: Apache-2.0
"""The training of the chaos runs, with something wrong in it: the last argument says what."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lightning_sagemaker._compat.sharding import fully_shard
from lightning_sagemaker.recovery import data_shards
from tests.chaos import recovery_training

WRONG = sys.argv.pop()


class Module(recovery_training.Module):
    """Wrong as asked."""

    def configure_model(self) -> None:
        if WRONG == "shards itself":
            fully_shard(self.net[0], mesh=self.device_mesh["data_parallel"])

    def on_fit_start(self) -> None:
        if WRONG == "dies once it has saved":
            write = self.trainer.strategy.save_checkpoint

            def save(*arguments: Any, **options: Any) -> None:
                write(*arguments, **options)
                self._die_if(recovery_training.RANK == "0")

            vars(self.trainer.strategy)["save_checkpoint"] = save

    def configure_optimizers(self) -> Any:
        if WRONG == "schedule":  # has the loaders made before the fit begins
            assert self.trainer.estimated_stepping_batches > 0
        return super().configure_optimizers()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if WRONG == "poison" and self.global_step == 5 and batch[2].tolist() == self._poisoned():
            os.kill(os.getpid(), signal.SIGKILL)
        if WRONG == "dies before a validation":
            self._die_if(batch_idx == 6 and recovery_training.RANK == "1")
        if WRONG == "rank 1 again and again, rank 0 once":
            deaths = self.folder / "deaths"
            if recovery_training.RANK == "1" and self.global_step > 1:
                with deaths.open("a") as file:
                    file.write("x")
                os.kill(os.getpid(), signal.SIGKILL)
            self._die_if(deaths.exists() and len(deaths.read_text()) > 1)
        if WRONG == "bug":
            raise ValueError("a bug of the script")
        return super().training_step(batch, batch_idx)

    def _die_if(self, is_due: bool) -> None:
        died = self.folder / "died"
        if is_due and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def _poisoned(self) -> list[int]:
        """Rank 1's samples in the sixth step, whoever trains on them."""
        loader = self.trainer.fit_loop._combined_loader.flattened[0]
        return next(data_shards.batches_of(loader, 1, 5))


class Own(DistributedSampler[Any]):
    """An order that is dealt in a way of the script's own."""


def _loader(dataset: Any, batch_size: int, shuffle: bool = False, **workers: Any) -> Any:
    ranks = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    return DataLoader(dataset, batch_size, sampler=Own(dataset, *ranks, shuffle=shuffle), **workers)


vars(recovery_training)["Module"] = Module
if WRONG in ("sampler", "schedule"):
    vars(recovery_training)["DataLoader"] = _loader
recovery_training.main()
