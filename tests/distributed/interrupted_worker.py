# SPDX-License-Identifier: Apache-2.0
"""Model parallel training that one rank is asked to stop in the middle, and its second start.

``interrupted_worker.py OUT_DIR`` writes ``OUT_DIR/rank-R.json``: layout -> losses of both starts, and how the first ended.
``LAYOUTS`` names the layouts, with ``;`` between them; those with ``, s3`` are saved below the URL ``PLACE``.
"""

import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import torch
import transformers
from lightning.pytorch import Callback, Trainer, seed_everything
from torch.utils.data import DataLoader, IterableDataset

from lightning_sagemaker import AutoResume, EvenLoader, SpotInterruption
from lightning_sagemaker.collectives.async_max import AsyncMaxReduce
from lightning_sagemaker.strategies.factory import smp_strategy

sys.path.insert(0, str(Path(__file__).parent))
from lightning_model import Losses, Model, samples

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
OUT = Path(sys.argv[1])
LAYOUTS = {
    "stages": ({"partitions": 2, "microbatches": 2}, {}),
    "stages, parts": ({"partitions": 2, "microbatches": 2}, {"save_distributed_checkpoint": True}),
    "tensor": ({"tensor_parallel_degree": 2}, {}),
    "tensor, parts": ({"tensor_parallel_degree": 2}, {"save_distributed_checkpoint": True}),
    "beside, parts": ({"tensor_parallel_degree": 2}, {"async_checkpoint": True}),
}
REMOTE = ", s3"
STEPS = 16


class Stop(Callback):
    """SIGTERM to the second rank's own process."""

    def on_train_batch_start(self, trainer, *_) -> None:
        if trainer.global_step == 3 and trainer.global_rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def calm(kind: str) -> list[float]:
    """Losses of a run that nothing happens to; how it would have saved does not change them."""
    losses, _ = train(LAYOUTS[kind][0], {}, [])
    return losses


def guarded(name: str, stop: bool) -> tuple[list[float], int | None]:
    """Losses of one start, and how it ended."""
    place = f"{os.environ['PLACE']}/{name}".replace(" ", "") if name.endswith(REMOTE) else OUT / name
    callbacks = [AutoResume(place), SpotInterruption(place, overhead=1e6), *([Stop()] if stop else [])]
    return train(*LAYOUTS[name.removesuffix(REMOTE)], callbacks)


def train(parameters: dict, options: dict, callbacks: list[Callback]) -> tuple[list[float], int | None]:
    seed_everything(0, verbose=False)
    losses = Losses()
    trainer = Trainer(
        strategy=smp_strategy(parameters=parameters, **options),
        accelerator="cpu",
        devices=2,
        max_steps=STEPS,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[losses, *callbacks],
    )
    code = None
    try:
        trainer.fit(Model("bert"), DataLoader(samples("bert")[:8], 8))  # one batch: an epoch is a step
    except SystemExit as error:
        code = error.code
    return losses.values, code


class Stream(IterableDataset):
    """Longer on the second rank, and of no known length."""

    def __iter__(self):
        yield from samples("bert")[: 8 * (3 + 2 * int(os.environ["RANK"]))]


def uneven() -> dict:
    """Two epochs of streams of three and of five batches."""
    losses, loader = Losses(), EvenLoader(DataLoader(Stream(), 8))
    trainer = Trainer(
        strategy="smddp",
        accelerator="cpu",
        devices=2,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[losses],
    )
    trainer.fit(Model("bert"), loader)
    return {"steps": trainer.global_step, "cut_short": loader.cut_short}


def main() -> None:
    torch.set_num_threads(1)
    found = {"uneven": uneven()}
    votes, real = AsyncMaxReduce.of_all(), time.time
    found["spread"] = [votes.clock_spread()]
    time.time = lambda: real() + 3600 * int(os.environ["RANK"])  # the second rank's clock goes an hour ahead
    found["spread"].append(votes.clock_spread())
    time.time = real
    left_alone = {kind: calm(kind) for kind in ("stages", "tensor")}
    for name in os.environ["LAYOUTS"].split(";"):
        first, code = guarded(name, True)
        second, _ = guarded(name, False)
        found[name] = {"calm": left_alone["stages" if "stages" in name else "tensor"], "first": first, "second": second}
        found[name]["code"] = code
    (OUT / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
