# SPDX-License-Identifier: Apache-2.0
"""Lightning's callbacks in a run that is stopped, or dies, and is resumed: compared with stock Lightning, left alone."""

import os
import signal

import pytest
import torch
import torchmetrics
from lightning.pytorch import Callback, LightningModule, Trainer, callbacks, seed_everything
from torch.utils.data import DataLoader, TensorDataset

from lightning_sagemaker import AutoResume, MetricLogger, SpotInterruption
from lightning_sagemaker.callbacks.interruption import Interrupted

BATCHES, EPOCHS = 8, 4


class Module(LightningModule):
    """Two layers with dropout, a metric in training and one in validation."""

    def __init__(self):
        super().__init__()
        self.backbone = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
        self.head = torch.nn.Sequential(torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
        self.train_error, self.val_error = torchmetrics.MeanSquaredError(), torchmetrics.MeanSquaredError()
        self.steps, self.validations = [], []

    def training_step(self, batch, index):
        x, y = batch
        output = self.head(self.backbone(x))
        loss = torch.nn.functional.mse_loss(output, y)
        self.train_error(output.detach(), y)
        self.log("train_error", self.train_error, on_step=False, on_epoch=True)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        if not any(isinstance(one, Notes) for one in self.trainer.callbacks):  # a finder's trial
            return loss
        rates = [group["lr"] for group in self.optimizers().param_groups]
        self.steps.append((self.trainer.current_epoch, index, self.global_step, x[:, 0].tolist(), loss.item(), rates))
        return loss

    def validation_step(self, batch, index):
        output = self.head(self.backbone(batch[0]))
        self.val_error(output, batch[1])
        self.log("val_error", self.val_error)
        self.log("val_loss", torch.nn.functional.mse_loss(output, batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam([one for one in self.parameters() if one.requires_grad], 0.05)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, BATCHES * EPOCHS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Rows(MetricLogger):
    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step=None):
        metrics = {name: float(value) for name, value in metrics.items() if "/" not in name}
        if metrics:
            self.rows.append((step, metrics))


class Notes(Callback):
    def __init__(self, stop, dies):
        self.stop, self.dies = stop, dies

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if self.stop is not None and trainer.fit_loop.total_batch_idx + 1 == self.stop:
            if self.dies:
                raise RuntimeError("dies")
            os.kill(os.getpid(), signal.SIGTERM)

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            values = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val")}
            module.validations.append((trainer.current_epoch, trainer.global_step, values))


class Unfreeze(callbacks.BackboneFinetuning):
    def __init__(self):
        super().__init__(unfreeze_backbone_at_epoch=1, verbose=False)


class StaysAsItWas(Callback):
    """A backbone whose norms keep their means, as people write it."""

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch:
            module.backbone.eval()


CASES = {
    "none": lambda _: [],
    "backbone in evaluation mode": lambda _: [StaysAsItWas()],
    "some layers": lambda _: [
        callbacks.LambdaCallback(
            on_train_epoch_start=lambda trainer, module: module.head.requires_grad_(trainer.current_epoch % 2 == 0)
        )
    ],
    "weights": lambda _: [callbacks.WeightAveraging()],
    "another checkpoint": lambda folder: [
        callbacks.ModelCheckpoint(every_n_train_steps=5, filename="steps-{step}"),
        callbacks.OnExceptionCheckpoint(folder),
    ],
    "throughput": lambda _: [callbacks.ThroughputMonitor(lambda batch: len(batch[0]), window_size=3)],
    "early stopping": lambda _: [callbacks.EarlyStopping("val_error", patience=1, min_delta=0.2)],
    "ema": lambda _: [callbacks.EMAWeightAveraging(decay=0.9)],
    "swa": lambda _: [callbacks.StochasticWeightAveraging(0.01, swa_epoch_start=1, annealing_epochs=2)],
    "accumulation": lambda _: [callbacks.GradientAccumulationScheduler({0: 2, 2: 4})],
    "unfreezing": lambda _: [Unfreeze()],
    "rates": lambda _: [callbacks.LearningRateMonitor("step", log_momentum=True)],
    "timer": lambda _: [callbacks.Timer(duration={"hours": 1})],
    "devices": lambda _: [callbacks.LambdaCallback(on_train_epoch_start=lambda *_: None)],
    "pruning": lambda _: [callbacks.ModelPruning("l1_unstructured", amount=0.2)],
    "masks in checkpoints": lambda _: [
        callbacks.ModelPruning(
            "random_unstructured", parameter_names=["weight"], amount=0.2, make_pruning_permanent=False
        )
    ],
    "finder and swa": lambda _: [
        callbacks.StochasticWeightAveraging(0.01, swa_epoch_start=2),
        callbacks.LearningRateFinder(num_training_steps=5, early_stop_threshold=None),
    ],
}


def _run(folder, extra, stop=None, dies=False, ours=True, **options):
    seed_everything(5, verbose=False)
    x = torch.randn(BATCHES * 4, 4, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x.sum(1, keepdim=True))
    module, rows = Module(), Rows()
    module.lr = 0.05
    saves = callbacks.ModelCheckpoint(folder / "best", monitor="val_error", save_top_k=2, save_last=True)
    own = [AutoResume(folder / "best"), SpotInterruption(folder / "best")] if ours else []
    trainer = Trainer(
        accelerator="cpu", max_epochs=EPOCHS, val_check_interval=0.5, logger=rows, log_every_n_steps=1,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        callbacks=[*own, *extra(folder), Notes(stop, dies), saves], **options,
    )  # fmt: skip
    try:
        trainer.fit(module, DataLoader(data, 4, shuffle=True), DataLoader(data, 4))
    except (Interrupted, RuntimeError):
        if stop is None:
            raise
    best = {os.path.basename(path): float(score) for path, score in saves.best_k_models.items()}
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    return module.steps, module.validations, rows.rows, best, weights


def _keyed(rows, name):
    """What is done again after a death is the same, so a later one takes its place."""
    found, seen = {}, {}
    for row in rows:
        key = (row[0], *sorted(row[1])) if name == "rows" else row[: 3 if name == "steps" else 2]
        seen[key] = seen.get(key, 0) + 1
        found[key, seen[key]] = row
    return found


def _differences(alone, parts):
    found = []
    for number, name in enumerate(("steps", "validations", "rows")):
        joined = {}
        for part in parts:
            joined |= _keyed(part[number], name)
        whole = _keyed(alone[number], name)
        found += [
            (name, whole.get(key), joined.get(key)) for key in whole | joined if whole.get(key) != joined.get(key)
        ]
    if alone[3] != parts[-1][3]:
        found.append(("best", alone[3], parts[-1][3]))
    found += [("weights", name) for name, tensor in alone[4].items() if not torch.equal(tensor, parts[-1][4][name])]
    return found


# Where it dies in the hook after a batch and saves that very moment, the row of this batch is not yet written, and never is.
RUNS = [(name, dies) for name in CASES for dies in (False, True) if not (dies and name == "another checkpoint")]


@pytest.mark.parametrize(("name", "dies"), RUNS)
def test_a_run_with_a_callback_is_resumed(tmp_path, name, dies):
    alone = _run(tmp_path / "alone", CASES[name], ours=False)
    stops = [7, 18] if dies else [3, 12, 16]
    parts = [_run(tmp_path / "ours", CASES[name], stop, dies) for stop in stops] + [
        _run(tmp_path / "ours", CASES[name])
    ]
    assert _differences(alone, parts) == []


def test_a_checkpoint_that_was_written_before_there_were_flags_is_resumed(tmp_path):
    _run(tmp_path, CASES["none"], stop=3)
    (path,) = (tmp_path / "best").glob("auto-step=3.ckpt")
    checkpoint = torch.load(path, weights_only=True)
    for own in checkpoint["lightning_sagemaker"]["ranks"]:
        del own["flags"]
    torch.save(checkpoint, path)
    steps, *_ = _run(tmp_path, CASES["none"])
    assert steps[0][2] == 3
