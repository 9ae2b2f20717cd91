# SPDX-License-Identifier: Apache-2.0
"""Two ranks that unfreeze a layer which DDP has wrapped frozen, or trainable: do their weights differ, and is it said?"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import BaseFinetuning
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_sagemaker import SageMakerDDPStrategy
from lightning_sagemaker.collectives import clean_exit


class Module(BoringModel):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = torch.nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.backbone(x))  # type: ignore[no-any-return]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([one for one in self.parameters() if one.requires_grad], 0.1)


class Late(BaseFinetuning):
    """As Lightning's ``BackboneFinetuning``."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.backbone)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: torch.optim.Optimizer) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.backbone, optimizer)


class AfterDDP(Late):
    """Frozen once DDP has wrapped the module."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        pass

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.freeze(pl_module.backbone)
        trainer.strategy.setup_optimizers(trainer)
        super().on_fit_start(trainer, pl_module)


def train(callback: BaseFinetuning) -> tuple[bool, list[str]]:
    """Whether the ranks have the same weights, and what is said of them."""
    torch.manual_seed(1)
    module = Module()
    quiet: Any = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    trainer = Trainer(
        strategy=SageMakerDDPStrategy(find_unused_parameters=True), accelerator="cpu", devices=2, max_epochs=3,
        limit_train_batches=2, limit_val_batches=0, callbacks=[callback], **quiet,
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(module)
    both = [torch.zeros_like(module.backbone.weight) for _ in range(2)]
    dist.all_gather(both, module.backbone.weight.detach())
    return torch.equal(*both), [str(one.message) for one in caught if "did not require gradients" in str(one.message)]


if __name__ == "__main__":
    same, said = train(Late())
    assert not same
    if dist.get_rank() == 0:
        assert [text.partition(" did")[0] for text in said] == ["'backbone.weight' and 1 other parameters"], said
    assert train(AfterDDP()) == (True, [])
    clean_exit.let_threads_finish()
