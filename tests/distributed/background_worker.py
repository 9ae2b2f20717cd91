# SPDX-License-Identifier: Apache-2.0
"""What every rank runs: fits whose checkpoints are written beside them, and at once.

``background_worker.py OUT_DIR`` writes ``OUT_DIR/rank-R.json``; ``OTHER`` names a folder with checkpoints to go on from.
"""

import json
import os
import sys
import threading
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter
from torch.utils.data import DataLoader, DistributedSampler

from lightning_sagemaker import AutoResume, SMDDPFSDPStrategy, SMPShardedStrategy, SpotInterruption
from lightning_sagemaker.checkpoint.background import BackgroundSave
from lightning_sagemaker.checkpoint.deferred import DeferredCopies
from lightning_sagemaker.checkpoint.find import find_checkpoint

sys.path.insert(0, str(Path(__file__).parent))
from lightning_model import Losses, Model, error_of, samples
from place import PLACE

warnings.filterwarnings("ignore")
OUT = Path(sys.argv[1])
WORLD, RANK = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
BATCH = 8
STEPS = 8


def trainer_of(strategy, folder: Path, steps: int = STEPS, callbacks=(), every: int = 2, keep: int = -1) -> Trainer:
    saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=every, save_top_k=keep, monitor=None)
    return Trainer(
        strategy=strategy,
        **PLACE,
        max_steps=steps,
        callbacks=[saving, *callbacks],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=OUT,
    )


def fit(trainer: Trainer) -> dict:
    seed_everything(0, verbose=False)
    module, losses, data = Model("bert"), Losses(), samples("bert")
    trainer.callbacks.append(losses)
    sampler = DistributedSampler(data, WORLD, RANK, shuffle=False)
    trainer.fit(module, DataLoader(data, BATCH // WORLD, sampler=sampler))
    own = [p.to_local() if hasattr(p, "to_local") else p for p in module.parameters()]
    return {"losses": losses.values, "sums": [float(part.double().sum()) for part in own]}


def beside(**options) -> SMDDPFSDPStrategy:
    return SMDDPFSDPStrategy(async_checkpoint=True, **options)


def slow_parts(seconds: float):
    """Parts that take this long to copy and to write, as those of a large model do; gives back what it was."""
    write, copy = FileSystemWriter.write_data, DeferredCopies.run

    def slow(self, *args):
        time.sleep(seconds)
        return write(self, *args)

    def slow_copy(self):
        time.sleep(seconds / 4)  # the next update would be over by then
        copy(self)

    def restore():
        FileSystemWriter.write_data, DeferredCopies.run = write, copy

    FileSystemWriter.write_data, DeferredCopies.run = slow, slow_copy
    return restore


def failing_part(folder: Path) -> str | None:
    """The disk of the last process is full at its first checkpoint."""
    write = FileSystemWriter.write_data

    def fails(self, *args):
        if RANK == WORLD - 1:
            raise OSError(28, "No space left on device")
        return write(self, *args)

    FileSystemWriter.write_data = fails
    try:
        return error_of(lambda: fit(trainer_of(beside(), folder)))
    finally:
        FileSystemWriter.write_data = write


class OwnWork:
    """What a save does in the step itself: how often it plans, and that it asks no other process for anything."""

    COLLECTIVES = ("all_gather_object", "gather_object", "scatter_object_list", "broadcast", "all_reduce", "barrier")

    def __init__(self) -> None:
        self.plans = self.asked = 0
        self._plan, self._begin = DefaultSavePlanner.create_local_plan, BackgroundSave.begin
        self._collectives = {name: getattr(dist, name) for name in self.COLLECTIVES}

    def __enter__(self):
        def plan(planner):
            self.plans += 1
            return self._plan(planner)

        def begin(save, *args):
            for name in self.COLLECTIVES:
                setattr(dist, name, self._ask)
            try:
                self._begin(save, *args)
            finally:
                self._restore()

        DefaultSavePlanner.create_local_plan, BackgroundSave.begin = plan, begin
        return self

    def _ask(self, *args, **kwargs):
        self.asked += 1
        raise AssertionError("a collective in the step that saves")

    def _restore(self) -> None:
        for name, collective in self._collectives.items():
            setattr(dist, name, collective)

    def __exit__(self, *_):
        DefaultSavePlanner.create_local_plan, BackgroundSave.begin = self._plan, self._begin


class Overlap(Losses):
    """How many batches were trained on while a checkpoint was being written."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def on_train_batch_start(self, *_):
        self.count += any(thread.name == "checkpoint" for thread in threading.enumerate())


class StopAt(Losses):
    """A signal that asks for the end, to one process."""

    def on_train_batch_end(self, trainer, *args):
        super().on_train_batch_end(trainer, *args)
        if trainer.global_step == 3 and RANK == 0:
            os.kill(os.getpid(), 15)
        time.sleep(0.6)  # so that ranks ask after every step; of steps of milliseconds, they ask after dozens


def interrupted(folder: Path) -> dict:
    code = None
    callbacks = [SpotInterruption(folder, save_every=None), AutoResume(folder), StopAt()]
    try:
        strategy = SMPShardedStrategy(parameters={"hybrid_shard_degree": WORLD}, async_checkpoint=True)
        fit(trainer_of(strategy, folder / "other", 100, callbacks, every=1000))
    except SystemExit as error:
        code = error.code
    found = find_checkpoint(folder)
    return {"code": code, "step": found and found.step}


def kept(folder: Path) -> list[list[str]]:
    """One checkpoint is kept: the older one goes when the newer one is whole."""
    seen: list[list[str]] = []

    class Look(Losses):
        def on_train_batch_end(self, trainer, *args):
            if trainer.global_step > 2:
                found = folder.iterdir() if folder.exists() else ()  # made by the thread that writes the first
                seen.append(sorted(path.name for path in found if find_whole(path)))

    restore = slow_parts(0.1)
    fit(trainer_of(beside(), folder, callbacks=[Look()], keep=1))
    restore()
    return [*seen, sorted(path.name for path in folder.iterdir())]


def find_whole(path: Path) -> bool:
    return path.suffix == ".ckpt" and (path / "sums.json").exists()


def main() -> None:
    torch.set_num_threads(1)
    found: dict = {}
    if other := os.environ.get("OTHER"):
        found["rest"] = fit(trainer_of(beside(), OUT / "rest", callbacks=[AutoResume(other)]))
    else:
        found["at once"] = fit(trainer_of(SMDDPFSDPStrategy(save_distributed_checkpoint=True), OUT / "at once"))
        overlap, restore = Overlap(), slow_parts(0.2)
        with OwnWork() as work:
            found["beside"] = fit(trainer_of(beside(), OUT / "beside", callbacks=[overlap]))
        found["beside"] |= {"overlap": overlap.count, "plans": work.plans, "asked": work.asked}
        restore()
        found["failure"] = failing_part(OUT / "failure")
        found["left by failure"] = sorted(path.name for path in (OUT / "failure").glob("*"))
        found["interrupted"] = interrupted(OUT / "interrupted")
        found["rest"] = fit(trainer_of(beside(), OUT / "rest", callbacks=[AutoResume(OUT / "interrupted")]))
        found["kept"] = kept(OUT / "kept")
        found["one file"] = error_of(lambda: beside(save_distributed_checkpoint=False))
    (OUT / f"rank-{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
