# SPDX-License-Identifier: Apache-2.0
"""Two ranks with manual optimization of several models: "smddp_fsdp" equals stock FSDP2 on each of them, and trains all."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader

import lightning_sagemaker  # noqa: F401, registers the strategies
from lightning_sagemaker.collectives import clean_exit


class Several(LightningModule):
    """Its encoder and decoder have blocks; some of its models have none."""

    def __init__(self, shards: bool) -> None:
        super().__init__()
        self.automatic_optimization, self.shards, self.losses = False, shards, list[float]()
        self.encoder, self.critic = nn.Linear(8, 4), nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
        self.decoder = nn.Sequential(nn.Linear(4, 8), *(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3)))

    def configure_model(self) -> None:
        if self.shards:
            for part in (self.encoder, self.decoder, self.critic):
                fully_shard(part, mesh=self.device_mesh["data_parallel"])  # type: ignore[index]

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(one.parameters(), 0.01) for one in (self.encoder, self.decoder, self.critic)]

    def critic_step(self, x: Tensor, optimizer: Any) -> Tensor:
        with torch.no_grad():
            made = self.decoder(self.encoder(x))
        loss: Tensor = self.critic(made).mean() - self.critic(x).mean()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss

    def rebuild_step(self, x: Tensor, *optimizers: Any) -> Tensor:
        made = self.decoder(self.encoder(x))
        loss: Tensor = functional.mse_loss(made, x) - 0.1 * self.critic(made).mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers:
            self.clip_gradients(optimizer, 0.5, "norm")
            optimizer.step()
        return loss

    def validation_step(self, x: Tensor, batch_idx: int) -> None:
        self.log("error", functional.mse_loss(self.decoder(self.encoder(x)), x), sync_dist=True)


class CriticFirst(Several):
    def training_step(self, x: Tensor, batch_idx: int) -> None:
        encoder, decoder, critic = self.optimizers()  # type: ignore[misc]
        losses = self.critic_step(x, critic), self.rebuild_step(x, encoder, decoder)
        self.losses += [losses[0].item(), losses[1].item()]


class CriticLast(Several):
    """The critic is used between the backward pass and the update, and after that."""

    def training_step(self, x: Tensor, batch_idx: int) -> None:
        encoder, decoder, critic = self.optimizers()  # type: ignore[misc]
        losses = self.rebuild_step(x, encoder, decoder), self.critic_step(x, critic)
        loss = self.critic(x).square().mean()
        critic.zero_grad()
        self.manual_backward(loss)
        before = self.critic(x).mean().item()
        critic.step()
        self.losses += [losses[0].item(), losses[1].item(), before, self.critic(x).mean().item()]


def train(kind: type[Several], strategy: Any) -> list[float]:
    seed_everything(1, verbose=False)
    module = kind(shards=isinstance(strategy, ModelParallelStrategy))
    quiet: Any = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    trainer = Trainer(strategy=strategy, accelerator="cpu", devices=2, max_epochs=2, **quiet)
    data: Any = torch.randn(32, 8)
    trainer.fit(module, DataLoader(data, 4), DataLoader(data, 4))
    return [*module.losses, trainer.callback_metrics["error"].item()]


if __name__ == "__main__":
    stock = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    assert train(CriticFirst, "smddp_fsdp") == train(CriticFirst, stock)
    # Stock FSDP2 goes on with the parameters that it had gathered before the update.
    theirs = train(CriticLast, "ddp_find_unused_parameters_true")
    for own, other in zip(train(CriticLast, "smddp_fsdp"), theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
    clean_exit.let_threads_finish()
