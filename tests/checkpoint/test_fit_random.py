# SPDX-License-Identifier: Apache-2.0
"""A resumed run goes on with the generators of the script's own, wherever it keeps them."""

import random

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset, random_split

from lightning_sagemaker import AutoResume

NOISE = np.random.default_rng(0)
SAMPLES, BATCH = 24, 4


class Numbers(Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return SAMPLES + BATCH

    def __getitem__(self, index):
        return torch.tensor([float(index), self.transform(index)])


class Stream(IterableDataset):
    """Two numbers are drawn for each sample; how many there are is not known."""

    def __init__(self):
        self.noise = random.Random(5)

    def __iter__(self):
        return iter(torch.tensor([self.noise.random(), float(NOISE.normal())]) for _ in range(SAMPLES))


class Noise:
    def __init__(self):
        self.rng = np.random.RandomState(1)

    def __call__(self, index):
        return self.rng.randn()


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, index):
        return sum(one(index) for one in self.transforms)


class Data(LightningDataModule):
    def __init__(self, kind, workers):
        super().__init__()
        self.kind, self.workers, self.rng = kind, workers, random.Random(2)

    def train_dataloader(self):
        if self.kind == "stream":
            return DataLoader(Stream(), BATCH, num_workers=self.workers)
        transform = Compose([Noise()]) if self.kind == "deep" else lambda _: float(NOISE.normal())
        data, _ = random_split(Numbers(transform), [SAMPLES, BATCH], torch.Generator().manual_seed(3))
        return DataLoader(data, BATCH, shuffle=True, num_workers=self.workers)

    def on_before_batch_transfer(self, batch, index):
        return batch + self.rng.random()


class Mix(Callback):
    def __init__(self):
        self.rng = torch.Generator().manual_seed(4)

    def on_train_batch_start(self, trainer, pl_module, batch, index):
        batch += torch.rand((), generator=self.rng)


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.seen = torch.nn.Sequential(torch.nn.Linear(2, 1)), {}
        self.net[0].noise = np.random.Generator(np.random.MT19937(6))

    def on_train_epoch_start(self):
        self.scale = self.net[0].noise.random()

    def training_step(self, batch, index):
        self.seen[self.trainer.global_step] = [self.scale, self.net[0].noise.random(), *batch.flatten().tolist()]
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-3)


def trained(folder, data, module, max_epochs=3, **options):
    global NOISE
    NOISE = np.random.default_rng(7)  # as a new process would
    seed_everything(1, verbose=False)
    callbacks = [ModelCheckpoint(folder, every_n_train_steps=1), Mix()]
    trainer = Trainer(
        accelerator="cpu", devices=1, logger=False, callbacks=[AutoResume(folder), *callbacks], max_epochs=max_epochs,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, **options,
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    return module


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["deep", "global", "stream"])
def test_generators_of_the_scripts_own_go_on(tmp_path, kind, workers):
    alone = trained(tmp_path / "alone", Data(kind, workers), Module())
    assert len(alone.seen) == (36 if kind == "stream" and workers else 18)  # each worker reads all of it
    for stop in (2, 6, 10):
        before = trained(tmp_path / str(stop), Data(kind, workers), Module(), max_steps=stop)
        after = trained(tmp_path / str(stop), Data(kind, workers), Module())
        assert before.seen | after.seen == alone.seen


class Evaluated(IterableDataset):
    """Samples of another order in each validation."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        return iter(torch.tensor([float(self.epoch), float(number)]) for number in range(SAMPLES))


class EvaluatedData(Data):
    def __init__(self, kind, workers):
        super().__init__("global", 0)
        self.evaluated = kind, {"num_workers": workers, "persistent_workers": workers > 0}

    def val_dataloader(self):
        kind, options = self.evaluated
        if kind == "shuffle":
            own = torch.Generator().manual_seed(9)
            return DataLoader(Numbers(float), BATCH, shuffle=True, generator=own, **options)
        data = Evaluated() if kind == "epochs" else Numbers(Compose([Noise(), lambda _: float(NOISE.normal())]))
        return DataLoader(data, BATCH, **options)


class Validated(Module):
    def __init__(self):
        super().__init__()
        self.validated = {}

    def validation_step(self, batch, index):
        if not self.trainer.sanity_checking:
            self.validated[self.trainer.global_step, index] = batch.flatten().tolist()


@pytest.mark.parametrize("options", [{}, {"num_sanity_val_steps": 0, "check_val_every_n_epoch": 2}], ids=["", "late"])
@pytest.mark.parametrize(
    ("kind", "workers"), [("shuffle", 0), ("noise", 0), ("epochs", 0), ("shuffle", 1), ("noise", 1)]
)
def test_validations_draw_what_they_would_have_drawn(tmp_path, kind, workers, options):
    def run(name, **limits):
        data = EvaluatedData(kind, workers)
        return trained(tmp_path / name, data, Validated(), max_epochs=4, **limits, **options)

    alone = run("alone")
    assert alone.validated
    for stop in (5, 12, 16):
        before, after = run(str(stop), max_steps=stop), run(str(stop))
        assert before.seen | after.seen == alone.seen
        assert before.validated | after.validated == alone.validated
