# SPDX-License-Identifier: Apache-2.0
"""Scripts as people write them, stopped and resumed: compared with the same script under stock Lightning, left alone."""

import itertools
import os
import signal

import numpy as np
import pytest
import torch
import torchmetrics
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from lightning_sagemaker import AutoResume, ResumableLoader, SpotInterruption
from lightning_sagemaker.callbacks.interruption import Interrupted
from lightning_sagemaker.data.batches import TrainingBatches
from lightning_sagemaker.data.order import Blocks
from lightning_sagemaker.recipes._common.data.loaders import RecipeLoader
from tests.conftest import Runs

SAMPLES, BATCH = 40, 4


class Numbers(Dataset):
    """Each sample is its number, and a random number that is drawn for it."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.tensor([float(index), float(torch.rand(()))])


class Draws(Numbers):
    """Batches of draws, as the recipes' data has them."""

    def __getitem__(self, draws):
        return torch.stack([super(Draws, self).__getitem__(draw % SAMPLES) for draw in draws])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Numbers()[index] for index in range(SAMPLES))


class Module(LightningModule):
    """Notes its samples and what they did to the weights, which dropout depends on."""

    def __init__(self, warmup=False, plateau=False):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.warmup, self.plateau, self.steps = warmup, plateau, []

    def training_step(self, batch, index):
        batch = torch.cat(list(batch.values())) if isinstance(batch, dict) else batch
        loss = self.net(batch / SAMPLES).square().mean()
        self.log("loss", loss, on_epoch=True)
        self.steps.append((self.global_step, batch.tolist(), float(loss), self.optimizers().param_groups[0]["lr"]))
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", 1.0)  # it does not get better

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        if self.plateau:
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": self.plateau}}
        if self.warmup:
            total = self.trainer.estimated_stepping_batches  # makes the loaders before a checkpoint is read
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (2 * total))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
        return optimizer


class StopAfter(Callback):
    def __init__(self, batches):
        self.batches = batches

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if trainer.fit_loop.total_batch_idx + 1 == self.batches:
            os.kill(os.getpid(), signal.SIGTERM)


def train(make_loader, folder=None, stop=None, ours=True, evaluate=False, **options):
    """The steps of one start."""
    seed_everything(3, verbose=False)
    module = Module(options.pop("warmup", False), options.pop("plateau", False))
    callbacks = [AutoResume(folder), SpotInterruption(folder), StopAfter(stop)] if ours else []
    callbacks += options.pop("more", [])
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(accelerator="cpu", callbacks=callbacks, **{**quiet, "max_epochs": 3, **options})
    validation = DataLoader(Numbers(), BATCH) if evaluate else None
    try:
        trainer.fit(module, make_loader(trainer), validation)
    except Interrupted:
        assert stop is not None
    return module.steps


def alone_and_resumed(make_loader, tmp_path, stops, **options):
    """Steps of stock Lightning, and of starts that were stopped after so many batches."""
    alone = train(make_loader, ours=False, **options)
    found = []
    for stop in (*stops, None):
        found += train(make_loader, tmp_path, stop, **options)
    return alone, found


def shuffled(workers=0, **options):
    return lambda trainer: DataLoader(Numbers(), BATCH, shuffle=True, num_workers=workers, **options)


@pytest.fixture(scope="module")
def alone():
    """Steps of stock Lightning with a shuffled loader, by its number of workers."""
    return Runs(lambda workers: train(shuffled(workers), ours=False, warmup=True))


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("stop", [1, 13, 20])
def test_a_shuffled_loader_goes_on_with_the_next_sample(tmp_path, alone, workers, stop):
    """In the midst of an epoch and at its end, with what workers draw, and a schedule that reads the number of steps."""
    resumed = [step for end in (stop, None) for step in train(shuffled(workers), tmp_path, end, warmup=True)]
    assert resumed == alone[workers]
    assert {int(sample[0]) for _, batch, *_ in resumed[10:20] for sample in batch} == set(range(SAMPLES))


def test_workers_that_outlive_epochs_go_on_drawing(tmp_path):
    loader = shuffled(2, persistent_workers=True)
    alone, resumed = alone_and_resumed(loader, tmp_path, [4, 17, 25], evaluate=True)
    assert resumed == alone


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_read_again_up_to_where_it_was(tmp_path, workers):
    alone, resumed = alone_and_resumed(
        lambda _: DataLoader(Stream(), BATCH, num_workers=workers), tmp_path, [14], max_steps=35, max_epochs=-1
    )
    if workers:
        assert resumed == alone
    else:  # its random numbers are drawn among those of dropout
        assert [[sample[0] for sample in batch] for _, batch, *_ in resumed] == [
            [sample[0] for sample in batch] for _, batch, *_ in alone
        ]


class Own:
    """A loader of the script's own, without a length: Lightning fetches a batch ahead."""

    def __init__(self):
        self.random = np.random.default_rng(0)

    def __iter__(self):
        for batch in self.random.permutation(SAMPLES).reshape(-1, BATCH):
            yield torch.stack([torch.tensor([float(index), np.random.random()]) for index in batch])


class SaysItself(Own):
    """One that says where it is."""

    epoch = taken = 0

    def __iter__(self):
        order = np.random.default_rng(self.epoch).permutation(SAMPLES).reshape(-1, BATCH)
        while self.taken < len(order):
            self.taken += 1
            yield torch.stack([torch.tensor([float(index), 0.0]) for index in order[self.taken - 1]])
        self.taken, self.epoch = 0, self.epoch + 1

    def state_dict(self):
        return {"epoch": self.epoch, "taken": self.taken}

    def load_state_dict(self, state):
        self.epoch, self.taken = state["epoch"], state["taken"]


class ReadsOn(Own):
    """Goes on in the next epoch with what it has not read in this one."""

    def __init__(self):
        super().__init__()
        self.batches = itertools.chain.from_iterable(Own.__iter__(self) for _ in itertools.count())

    def __iter__(self):
        return itertools.islice(self.batches, 7)


class Drawn(Stream):
    """Of which Lightning fetches no batch ahead, as it has a length; it draws its order from a generator of its own."""

    def __init__(self):
        self.random = np.random.default_rng(0)

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        return (torch.tensor([float(index), 0.0]) for index in self.random.permutation(SAMPLES))


LOADERS = {
    "stream": lambda: DataLoader(Drawn(), BATCH),
    "own": Own,
    "says itself": SaysItself,
    "generator": lambda: DataLoader(Numbers(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(1)),
    "two": lambda: {"one": Own(), "other": DataLoader(Numbers(), BATCH, shuffle=True)},
}


@pytest.mark.parametrize("stop", [3, 10, 13])
@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_a_loader_that_the_script_made_goes_on(tmp_path, loader, stop):
    """Also at an epoch's end, where there is no next batch from which the next epoch's order would follow."""
    alone, resumed = alone_and_resumed(lambda _: loader(), tmp_path, [stop])
    assert resumed == alone


class Dies(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if trainer.global_step == 13:
            raise RuntimeError("dies")


@pytest.mark.parametrize("evaluate", [False, True])
@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_a_run_that_dies_goes_on_from_the_last_epochs_checkpoint(tmp_path, loader, evaluate):
    """With the order of the next epoch, which follows from a generator that is not the global one."""
    alone = train(lambda _: loader(), ours=False, evaluate=evaluate)
    epochs = {"enable_checkpointing": True, "evaluate": evaluate}
    with pytest.raises(RuntimeError, match="dies"):
        train(lambda _: loader(), tmp_path, more=[ModelCheckpoint(tmp_path), Dies()], **epochs)
    assert train(lambda _: loader(), tmp_path, more=[ModelCheckpoint(tmp_path)], **epochs) == alone[10:]


def test_a_loader_that_reads_on_from_epoch_to_epoch_is_named(tmp_path, recwarn):
    train(lambda _: ReadsOn(), tmp_path, max_epochs=1)
    assert any("ReadsOn continues from epoch to epoch" in str(warning.message) for warning in recwarn)


def test_data_that_lies_elsewhere_has_another_order_so_its_epoch_starts_over(tmp_path, caplog):
    """As shards of a folder, read from S3 after an interruption: going on would see some samples twice and some never."""

    def in_blocks(blocks):
        def make(trainer):
            batches = TrainingBatches(SAMPLES, BATCH, blocks=blocks)
            return RecipeLoader(Draws(), batch_size=None, sampler=batches)

        return make

    def resumed(name, before, after):
        first = train(in_blocks(before), tmp_path / name, 4, max_epochs=1)
        caplog.clear()
        second = train(in_blocks(after), tmp_path / name, max_epochs=1)
        return [int(sample[0]) for _, batch, *_ in first + second for sample in batch]

    blocks = Blocks(5, 2)
    assert sorted(resumed("same", blocks, blocks)) == [*range(SAMPLES)]
    assert "starts over" not in caplog.text
    assert sorted(resumed("other", None, blocks)[4 * BATCH :]) == [*range(SAMPLES)]
    assert "The position of RecipeLoader is unknown here, so its epoch starts over" in caplog.text


def test_what_cannot_be_found_again_is_said_at_the_start(tmp_path, recwarn):
    train(lambda _: DataLoader(Stream(), BATCH), tmp_path, max_epochs=1)
    assert any("Stream does not report its position" in str(warning.message) for warning in recwarn)


def test_a_dataset_that_is_no_class_of_torchs_is_not_taken_for_a_stream(tmp_path, recwarn):
    """As those of ``datasets``, which have a length and numbers."""

    class Table:
        __len__, __getitem__ = Numbers.__len__, Numbers.__getitem__

    train(lambda _: DataLoader(Table(), BATCH), tmp_path, max_epochs=1)
    assert not any("resumed" in str(warning.message) for warning in recwarn)


@pytest.mark.parametrize("monitor", ["val_loss", "loss_epoch"])
def test_a_schedule_that_waits_for_a_metric_follows_the_epoch_that_was_resumed(tmp_path, monitor):
    alone, resumed = alone_and_resumed(shuffled(), tmp_path, [13, 20], plateau=monitor, evaluate=True, max_epochs=4)
    assert resumed == alone
    if monitor == "val_loss":
        assert [rate for *_, rate in resumed[::10]] == [0.01, 0.01, 0.005, 0.0025]


def resumable(batch_size, workers=0):
    return lambda trainer: ResumableLoader(Numbers(), trainer, batch_size, seed=1, num_workers=workers)


def as_torch(batch_size):
    """As Lightning's own under DDP, of one process."""
    sampler = DistributedSampler(range(SAMPLES), 1, 0, seed=1)
    return lambda trainer: DataLoader(Numbers(), batch_size, sampler=sampler)


@pytest.mark.parametrize("first", [(2, 4), (8, 1), (4, 2), (1, 8)], ids=str)
@pytest.mark.parametrize("then", [(1, 8), (4, 1), (2, 2), (3, 2)], ids=str)
@pytest.mark.parametrize("kind", [resumable, as_torch, "shuffled"])
def test_every_sample_once_with_another_batch_and_accumulation(tmp_path, kind, first, then):
    """(batch, accumulated): the second epoch is stopped after 24 samples and resumed in other batches."""

    def steps(sizes, stop=None):
        batch, accumulated = sizes
        loader = kind(batch) if callable(kind) else lambda _: DataLoader(Numbers(), batch, shuffle=True)
        return train(loader, tmp_path, stop, accumulate_grad_batches=accumulated, max_epochs=2)

    before = steps(first, stop=(SAMPLES + 24) // first[0])
    after = steps(then)
    seen = [int(sample[0]) for _, batch, *_ in [*before, *after] for sample in batch]
    assert sorted(seen[:SAMPLES]) == list(range(SAMPLES))
    second = seen[SAMPLES:]
    assert len(set(second)) == len(second)
    in_step = then[0] * then[1]
    dropped = (SAMPLES - 24) % in_step if kind is resumable else 0
    assert len(second) == SAMPLES - dropped
    if kind is resumable and first[0] * first[1] == in_step:
        calm = train(kind(8), tmp_path / "calm", max_epochs=2)
        assert sorted(second[24:32]) == sorted(int(sample[0]) for sample in calm[8][1])


@pytest.mark.parametrize("kind", [resumable, as_torch])
@pytest.mark.parametrize(("first", "then"), [((4, 1), (4, 2)), ((4, 2), (2, 1)), ((2, 2), (8, 1))], ids=str)
def test_a_schedule_goes_on_at_the_same_share_of_the_samples(tmp_path, kind, first, then):
    """Of two epochs, of which it falls to a half; stopped after 24 samples of the second."""

    def steps(sizes, stop=None):
        return train(kind(sizes[0]), tmp_path, stop, accumulate_grad_batches=sizes[1], max_epochs=2, warmup=True)

    steps(first, stop=(SAMPLES + 24) // first[0])
    after = steps(then)
    assert after[0][3] == pytest.approx(0.01 * (1 - (SAMPLES + 24) / (2 * 2 * SAMPLES)))
    assert after[-1][3] == pytest.approx(0.01 * (0.5 + then[0] * then[1] / (2 * 2 * SAMPLES)))


class Summed(Module):
    """What is logged over an epoch, by Lightning and by torchmetrics."""

    def __init__(self):
        super().__init__()
        self.mean, self.most, self.found = torchmetrics.MeanMetric(), torchmetrics.MaxMetric(), []

    def training_step(self, batch, index):
        sample = batch[:, 0]
        self.mean.update(sample)
        self.most.update(sample)
        self.log("all", self.mean, on_epoch=True)
        self.log("most", sample.max(), on_epoch=True, reduce_fx="max")
        self.log("sum", sample.sum(), on_epoch=True, reduce_fx="sum")
        return super().training_step(batch, index)

    def on_train_epoch_end(self):
        metrics = self.trainer.callback_metrics
        self.found.append([float(metrics[name]) for name in ("all", "most", "sum")] + [float(self.most.compute())])


@pytest.mark.parametrize("stop", [4, 9, 10])
def test_metrics_of_an_epoch_go_on_in_other_batches(tmp_path, stop):
    """Also if all of the epoch's samples had been trained on."""
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)

    def run(batch, stop, found):
        module = Summed()
        callbacks = [AutoResume(tmp_path), SpotInterruption(tmp_path), StopAfter(stop)]
        callbacks += [EarlyStopping("loss_epoch", patience=99, check_on_train_epoch_end=True)]
        trainer = Trainer(accelerator="cpu", max_epochs=1, callbacks=callbacks, **quiet)
        try:
            trainer.fit(module, as_torch(batch)(trainer))
        except Interrupted:
            assert stop
        found += module.found

    found = []
    run(4, stop, found)
    run(2, None, found)
    assert found == [[sum(range(SAMPLES)) / SAMPLES, SAMPLES - 1.0, float(sum(range(SAMPLES))), SAMPLES - 1.0]]
