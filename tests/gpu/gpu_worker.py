# SPDX-License-Identifier: Apache-2.0
"""What only a GPU has: mixed precision, compiled kernels, pinned batches, random numbers of its own, memory that ends.

``gpu_worker.py STRATEGY OUT_DIR`` writes ``OUT_DIR/rank-R.json``: scenario -> its results, or the error it ended with.
"""

import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset

from lightning_sagemaker import AutoResume, SpotInterruption
from lightning_sagemaker.job.failure import write_failure

warnings.filterwarnings("ignore")
STRATEGY, OUT = sys.argv[1], Path(sys.argv[2])
ACCELERATOR = os.environ.get("LIGHTNING_SAGEMAKER_TEST_ACCELERATOR", "cuda")
WORLD, STEPS, SAMPLES = int(os.environ["WORLD_SIZE"]), 12, 64


class Net(LightningModule):
    """With dropout, whose random numbers are the GPU's."""

    def __init__(self, *, compiled: bool = False) -> None:
        super().__init__()
        seed_everything(1, verbose=False)
        layers = (torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(256, 1))
        self.net = torch.nn.Sequential(*layers)
        self.run = torch.compile(self.net) if compiled else self.net
        self.losses: list[str] = []
        self.pinned: list[bool] = []
        self.trained_on = ""

    def on_before_batch_transfer(self, batch, dataloader_idx):
        self.pinned.append(batch[0].is_pinned())
        return batch

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.mse_loss(self.run(batch[0]), batch[1])
        self.trained_on = loss.device.type
        self.losses.append(float(loss.detach()).hex())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def loader(**options) -> DataLoader:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 64, generator=draw)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True).sin()), batch_size=8, **options)


def fit(*, compiled: bool = False, callbacks=(), options=None, **arguments) -> dict:
    module = Net(compiled=compiled)
    trainer = Trainer(
        strategy=STRATEGY,
        accelerator=ACCELERATOR,
        devices=WORLD,
        max_steps=STEPS,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        default_root_dir=OUT,
        **arguments,
    )
    trainer.fit(module, loader(**(options or {})))
    return {
        "losses": module.losses,
        "device": module.trained_on,
        "pinned": all(module.pinned),
        "weights": bits(module),
    }


def bits(module) -> list[str]:
    flat = torch.cat([parameter.detach().double().flatten().cpu() for parameter in module.parameters()])
    return [value.hex() for value in flat[::97].tolist()]


class Stop(Callback):
    """SIGTERM to this process; steps are slowed so that ranks ask each other after each of them."""

    def on_train_batch_end(self, trainer, *_):
        time.sleep(0.6)
        if trainer.global_step == 5 and trainer.global_rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)


def resumed() -> dict:
    """As it goes when it is stopped and started again."""
    folder, code = OUT / "resumed", None
    try:
        fit(
            callbacks=[AutoResume(folder), SpotInterruption(folder, save_every=None), Stop()], options={"shuffle": True}
        )
    except SystemExit as error:
        code = error.code
    return {"code": code, **fit(callbacks=[AutoResume(folder)], options={"shuffle": True})}


def out_of_memory() -> dict:
    """The failure file of a step that needs more than there is."""
    path = OUT / "failure"
    path.touch()
    try:
        torch.empty(2**44, dtype=torch.float32, device=ACCELERATOR)
    except RuntimeError as error:
        write_failure(path, error, int(os.environ["RANK"]), step=7)
    return {"text": path.read_text()[:200]}


def fabric() -> dict:
    seed_everything(1, verbose=False)
    runner = Fabric(strategy=STRATEGY, accelerator=ACCELERATOR, devices=WORLD, precision="bf16-mixed")
    runner.launch()
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
    model, optimizer = runner.setup(net, torch.optim.AdamW(net.parameters(), lr=1e-3))
    for x, y in runner.setup_dataloaders(loader()):
        runner.backward(torch.nn.functional.mse_loss(model(x), y))
        runner.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
    return {"weights": bits(net)}


SCENARIOS = {
    "32-true": fit,
    "16-mixed": lambda: fit(precision="16-mixed", gradient_clip_val=0.5),
    "bf16-mixed": lambda: fit(precision="bf16-mixed"),
    "bf16-true": lambda: fit(precision="bf16-true"),
    "compiled": lambda: fit(compiled=True),
    "pinned": lambda: fit(options={"num_workers": 2, "pin_memory": True, "persistent_workers": True}),
    "left alone": lambda: fit(options={"shuffle": True}),
    "resumed": resumed,
    "out of memory": out_of_memory,
    "fabric": fabric,
}


def main() -> None:
    results = {}
    for name in os.environ.get("SCENARIOS", ",".join(SCENARIOS)).split(","):
        try:
            results[name] = SCENARIOS[name]()
        except Exception as error:  # the tests look at what went wrong
            results[name] = {"error": f"{type(error).__name__}: {error}"}
    results["backend"] = dist.get_backend() if dist.is_initialized() else None
    (OUT / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
