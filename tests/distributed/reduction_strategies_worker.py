# SPDX-License-Identifier: Apache-2.0
"""The strategies' options for gradients, on four processes that stand for those of two hosts.

``reduction_strategies_worker.py OUT_DIR`` writes ``OUT_DIR/rank-R.json``: case -> what was found.
"""

import hashlib
import json
import logging
import os
import sys
import warnings
from pathlib import Path

OUT, RANK = Path(sys.argv[1]), int(os.environ["RANK"])
os.environ |= {
    "LOCAL_RANK": str(RANK % 2),
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": str(RANK // 2),
    "GROUP_WORLD_SIZE": "2",
}

import torch  # noqa: E402
from lightning.fabric import Fabric  # noqa: E402
from lightning.pytorch import LightningModule, Trainer, seed_everything  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from lightning_sagemaker import FabricSMDDPStrategy, SageMakerDDPStrategy, SMDDPStrategy  # noqa: E402

warnings.filterwarnings("ignore")
SAID: list[str] = []


class Listener(logging.Handler):
    def emit(self, record):
        SAID.append(record.getMessage())


def listen() -> None:
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero"):
        logging.getLogger(name).addHandler(Listener())
        logging.getLogger(name).setLevel(logging.INFO)


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh()
        )
        self.head = torch.nn.Linear(64, 1)
        self.losses = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = (self.head(self.net(x)) - y).square().mean()
        self.losses.append(loss.item())
        return loss

    def on_train_end(self):
        self.hooks = len(self.trainer.strategy.model._comm_hooks)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.5)


def loader() -> DataLoader:
    x = torch.randn(16 * 4 * 4, 16, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x[:, :4].sum(1, keepdim=True).tanh()), batch_size=4)


def bits(module) -> str:
    return hashlib.sha256(b"".join(part.detach().numpy().tobytes() for part in module.parameters())).hexdigest()


def fit(strategy, steps=8, accumulate=1, save=None, resume=None) -> dict:
    seed_everything(3)
    SAID.clear()
    model = Model()
    trainer = Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=2,
        num_nodes=2,
        max_steps=steps,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader(), ckpt_path=resume)
    found = {"bits": bits(model), "losses": model.losses, "weights": model.head.weight.flatten().tolist()}
    found["said"] = [line for line in SAID if line.startswith("Gradient reduction")]
    found["hooks"] = model.hooks
    if save is not None:
        trainer.save_checkpoint(save)
        found["kept"] = plain(torch.load(save, weights_only=True).get("gradient_reduction"))
    return found


def plain(kept):
    """For JSON: how long the errors are, instead of them."""
    if kept and "powersgd" in kept:
        kept["powersgd"]["errors"] = [None if part is None else part.numel() for part in kept["powersgd"]["errors"]]
    return kept


def with_fabric(strategy) -> dict:
    seed_everything(3)
    SAID.clear()
    fabric = Fabric(strategy=strategy, accelerator="cpu", devices=2, num_nodes=2)
    fabric.launch()
    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), 0.05))
    losses = []
    for x, y in fabric.setup_dataloaders(loader()):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        fabric.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return {
        "bits": bits(model),
        "losses": losses,
        "said": [line for line in SAID if line.startswith("Gradient reduction")],
    }


def main() -> None:
    torch.set_num_threads(1)
    listen()
    exact = {"gradient_reduction": "hierarchical"}
    low_rank = {"gradient_compression": "powersgd", "powersgd_start": 2, "powersgd_rank": 8}
    found = {"ddp": fit("ddp"), "default": fit(SMDDPStrategy()), "ddp, accumulated": fit("ddp", accumulate=3)}
    found["hierarchical"] = fit(SMDDPStrategy(**exact))
    found["hierarchical, accumulated"] = fit(SMDDPStrategy(**exact), accumulate=3)
    found["bf16"] = fit(SageMakerDDPStrategy(**exact, gradient_compression="bf16"))
    found["auto"] = fit(SMDDPStrategy(gradient_reduction="auto"), save=OUT / "auto.ckpt")
    found["auto, resumed"] = fit(SMDDPStrategy(gradient_reduction="auto"), steps=12, resume=OUT / "auto.ckpt")
    found["powersgd"] = fit(SMDDPStrategy(**low_rank), steps=12)
    found["powersgd, first"] = fit(SMDDPStrategy(**low_rank), save=OUT / "low.ckpt")
    found["powersgd, resumed"] = fit(SMDDPStrategy(**low_rank), steps=12, resume=OUT / "low.ckpt")
    found["fabric"] = with_fabric(FabricSMDDPStrategy(**exact))
    found["fabric, default"] = with_fabric(FabricSMDDPStrategy())
    (OUT / f"rank-{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
