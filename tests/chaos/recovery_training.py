# SPDX-License-Identifier: Apache-2.0
"""A training as people write it, which notes what each of its steps has seen; ranks of it are killed while it runs."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import time
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler
from torchmetrics.classification import MulticlassAccuracy

from lightning_sagemaker import AutoResume, MemoryCheckpoint, SageMakerDDPStrategy, SMDDPFSDPStrategy

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.chaos import device_error

_SMALL = 64
"""Units of the hidden layer; wider ones are for measurements, whose steps note no weights."""
RANK = os.environ.get("RANK", "0")
PLACE = {
    "accelerator": os.environ.get("LIGHTNING_SAGEMAKER_TEST_ACCELERATOR", "cpu"),
    "devices": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    "num_nodes": int(os.environ.get("GROUP_WORLD_SIZE", "1")),
}


class Points(Dataset[Any]):
    """Two features decide between four classes."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(size)
        self.x = torch.randn(size, 20, generator=generator)
        self.y = (self.x[:, :3].sum(1) > 0).long() + 2 * (self.x[:, 3] > 0).long()

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.x[index], self.y[index], index


class Module(LightningModule):
    """A plain module with metrics, and a pause in each step in the place of a large one."""

    def __init__(
        self, folder: Path, pause: float, dropout: float, optimizer: str, width: int, norm: int, depth: int
    ) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 4))
        if width > _SMALL:
            self.net.insert(1, nn.Linear(width, width))
            self.net.insert(2, nn.Linear(width, width))
        for _ in range(depth):
            self.net.insert(1, nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.Dropout(dropout)))
        if norm:
            self.net.insert(1, nn.BatchNorm1d(width))
        self.accuracy, self.validation = MulticlassAccuracy(4), MulticlassAccuracy(4)
        self.folder, self.pause, self.optimizer = folder, pause, optimizer

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y, indices = batch
        time.sleep(self.pause)
        device_error.may_happen(self.folder, "forward")
        output = self.net(x)
        loss = nn.functional.cross_entropy(output, y)
        device_error.may_happen_backward(self.folder, loss)
        self.accuracy(output, y)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log("train_accuracy", self.accuracy, on_step=False, on_epoch=True)
        row = {
            "epoch": self.current_epoch,
            "batch": batch_idx,
            "step": self.global_step,
            "samples": indices.tolist(),
            "loss": loss.item(),
            "weights": checksum(self) if self.net[-1].in_features == _SMALL else 0,
            "random": [random.random(), float(np.random.rand())],
        }
        with (self.folder / f"rank-{RANK}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        return loss

    def on_after_backward(self) -> None:
        nn.utils.clip_grad_norm_(self.net[-1].parameters(), 0.1)  # of the mean over all shards

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y, _ = batch
        time.sleep(self.pause / 2)
        output = self.net(x)
        self.validation(output, y)
        self.log("accuracy", self.validation)
        self.log("loss", nn.functional.cross_entropy(output, y), sync_dist=True)

    def configure_optimizers(self) -> Any:
        kinds = {"adamw": torch.optim.AdamW, "sgd": partial(torch.optim.SGD, momentum=0.9)}
        optimizer = kinds[self.optimizer](self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        if self.trainer.limit_val_batches == 0:
            return optimizer
        every = self.trainer.check_val_every_n_epoch
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "monitor": "loss", "frequency": every},
        }


class MeetingModule(Module):
    """Its hooks wait for all ranks, at different times of a step."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self._meet(2.0)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._meet(1.0)

    def _meet(self, number: float) -> None:
        time.sleep(self.pause / 4 * (int(RANK) % 2))
        largest = self.all_gather(torch.tensor(number)).max()  # type: ignore[union-attr]
        self.log(f"largest_{number:.0f}", largest)


class Meets(Callback):
    """As :class:`MeetingModule`, at every third step."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step % 3 == 0:
            trainer.strategy.barrier()


class Notes(Callback):
    """Steps that count, validations, and what is left in the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _note(self, *row: Any) -> None:
        with (self.folder / "steps.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        device_error.may_happen(self.folder, "optimizer")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.is_global_zero:
            self._note("step", trainer.global_step, time.time())

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero and not trainer.sanity_checking:
            values = [trainer.callback_metrics[name].item() for name in ("loss", "accuracy")]
            rates = [group["lr"] for group in trainer.optimizers[0].param_groups]
            self._note("validation", trainer.global_step, *values, *rates)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        weights = {name: complete(value) for name, value in pl_module.state_dict().items()}
        torch.save(weights, self.folder / f"weights-{RANK}.pt")
        if trainer.limit_val_batches == 0:
            return
        best = trainer.checkpoint_callback
        (self.folder / f"best-{RANK}.json").write_text(
            json.dumps([Path(best.best_model_path).name, float(best.best_model_score), sorted(best.best_k_models)])
        )


class Deadline(Callback):
    """Ends a training some seconds after it began, at a step that one rank names early enough for all to see it."""

    _AHEAD = 20

    def __init__(self, folder: Path, seconds: float) -> None:
        self._begin, self._last = folder / "begin", folder / "last-step"
        self._seconds = seconds
        with contextlib.suppress(FileExistsError), self._begin.open("x"):
            pass

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._last.exists():
            trainer.should_stop |= trainer.global_step >= int(self._last.read_text())
        elif trainer.is_global_zero and time.time() - self._begin.stat().st_mtime > self._seconds:
            self._last.with_suffix(".new").write_text(str(trainer.global_step + self._AHEAD))
            self._last.with_suffix(".new").rename(self._last)


def checksum(module: nn.Module) -> int:
    """Of this rank's shards, where parameters are sharded."""
    own = (one.to_local() if isinstance(one, DTensor) else one for one in module.parameters())
    return zlib.crc32(b"".join(tensor.detach().cpu().clone().numpy().tobytes() for tensor in own))


def complete(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor that may be sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def options_of_script() -> argparse.Namespace:
    """The options; notes the process's number too."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=0.0, help="end after so long, whatever the epoch")
    parser.add_argument("--pause", type=float, default=0.03)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--persistent", type=int, default=0, help="whether workers stay from one epoch to the next")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--width", type=int, default=_SMALL)
    parser.add_argument("--depth", type=int, default=0, help="further hidden layers, each of four modules")
    parser.add_argument("--order", default="shuffled", choices=["shuffled", "weighted"])
    parser.add_argument("--norm", type=int, default=0, help="whether with BatchNorm")
    parser.add_argument("--no-validation", action="store_true")
    parser.add_argument("--limit", type=int, default=0, help="batches of a validation; 0: all")
    parser.add_argument("--every", type=int, default=1, help="epochs from one with validations to the next")
    parser.add_argument(
        "--meets", type=int, default=0, help="1: hooks of each third step wait for all ranks; 2: of each"
    )
    parser.add_argument("--strategy", default="sagemaker")
    parser.add_argument("--shard", type=int, default=0, help="ranks that each replica is sharded across; 0: none")
    parser.add_argument("--restarts", type=int, default=0, help="whether all ranks are restarted when one is lost")
    parser.add_argument("--parts", type=int, default=0, help="whether each rank writes its shard of a checkpoint")
    options = parser.parse_args()
    (options.folder / f"pid-{RANK}.new").write_text(str(os.getpid()))
    (options.folder / f"pid-{RANK}.new").rename(options.folder / f"pid-{RANK}")
    return options


def sharded(ranks: int, parts: int) -> SMDDPFSDPStrategy:
    """Replicas that are sharded across so many ranks."""
    return SMDDPFSDPStrategy(hybrid_shard_degree=ranks, save_distributed_checkpoint=bool(parts))


def main() -> None:
    """Train."""
    options = options_of_script()
    folder = options.folder
    seed_everything(7)
    saves = ModelCheckpoint(folder / "checkpoints", monitor="loss", save_top_k=2, save_last=True)
    callbacks: list[Callback] = [Notes(folder)]
    if not options.no_validation:
        callbacks += [saves, EarlyStopping("loss", patience=50)]
    if options.shard:  # as a script has that is restarted where it does not recover in the job
        callbacks.append(MemoryCheckpoint())
    if options.meets:
        callbacks.append(Meets())
    strategy = sharded(options.shard, options.parts) if options.shard else options.strategy
    if options.restarts:
        strategy = SageMakerDDPStrategy(recovery="restart")
        callbacks += [AutoResume(folder / "resume"), ModelCheckpoint(folder / "resume", every_n_train_steps=100)]
    if options.seconds:
        callbacks.append(Deadline(folder, options.seconds))
    trainer = Trainer(
        strategy=strategy,
        **PLACE,
        max_epochs=options.epochs,
        limit_val_batches=0.0 if options.no_validation else options.limit or 1.0,
        check_val_every_n_epoch=options.every,
        accumulate_grad_batches=options.accumulate,
        val_check_interval=0.5,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=CSVLogger(folder, flush_logs_every_n_steps=1),
        log_every_n_steps=1,
        callbacks=callbacks,
    )
    kind = MeetingModule if options.meets == 2 else Module
    module = kind(folder, options.pause, options.dropout, options.optimizer, options.width, options.norm, options.depth)
    training, validation = Points(options.samples), Points(200)
    if options.order == "weighted":
        order = {"sampler": WeightedRandomSampler((1.0 + training.y).tolist(), options.samples)}
    else:
        order = {"shuffle": True}
    workers = {"num_workers": options.workers, "persistent_workers": bool(options.persistent)}
    trainer.fit(module, DataLoader(training, 8, **workers, **order), DataLoader(validation, 8, **workers))


if __name__ == "__main__":
    main()
