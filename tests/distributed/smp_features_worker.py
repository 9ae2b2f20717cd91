# SPDX-License-Identifier: Apache-2.0
"""What every rank runs: Lightning's callbacks, optimizers and uneven batches under ``"smp"``, or with one process.

``smp_features_worker.py OUT_DIR LAYOUT`` writes ``OUT_DIR/rank-R.json``: scenario -> its results. LAYOUT is
``one``, ``stages`` or ``shards``.
"""

import json
import logging
import os
import sys
import warnings
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, callbacks, seed_everything
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler
from torchmetrics import MeanMetric

import lightning_sagemaker  # noqa: F401 - registers the strategies
from lightning_sagemaker.strategies.factory import smp_strategy

sys.path.insert(0, str(Path(__file__).parent))
from lightning_model import Losses, error_of
from place import PLACE

warnings.filterwarnings("ignore")
OUT, LAYOUT = Path(sys.argv[1]), sys.argv[2]
WORLD = int(os.environ.get("WORLD_SIZE", 1))
PARAMETERS = {
    "stages": {"partitions": WORLD, "microbatches": 2, "ddp": True},
    "shards": {"sharded_data_parallel_degree": WORLD, "ddp": True},
}
BATCH = 8


class Model(LightningModule):
    """A stem, blocks and a head, with BatchNorm in all of them if asked for."""

    def __init__(self, norm: bool = False, optimizer: str = "SGD", **options) -> None:
        super().__init__()
        torch.manual_seed(0)
        kind = nn.BatchNorm1d if norm else nn.Identity
        self.stem = nn.Sequential(nn.Linear(6, 16), kind(16))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), kind(16), nn.Tanh()) for _ in range(4))
        self.head = nn.Sequential(nn.Linear(16, 1), kind(1))
        self.optimizer, self.options, self.lr = optimizer, options, 0.02

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)

    def training_step(self, batch, batch_idx):
        loss = nn.functional.mse_loss(self(batch["x"]), batch["y"])
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.mse_loss(self(batch["x"]), batch["y"]), sync_dist=True)

    def predict_step(self, batch, batch_idx):
        return self(batch["x"])

    def configure_optimizers(self):
        kind = getattr(torch.optim, self.optimizer)
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return kind(parameters, **{"lr": self.lr, **self.options})


class Row(Model):
    """No list of blocks: modules of different kinds and shapes, called in a row, one of them within another."""

    def __init__(self) -> None:
        super().__init__()
        del self.stem, self.blocks, self.head
        torch.manual_seed(0)
        self.convolve = nn.Conv1d(1, 4, 3)
        self.squeeze = nn.ModuleDict({"gate": nn.Linear(16, 16), "down": nn.Linear(16, 5)})
        self.attend = nn.MultiheadAttention(5, 1, batch_first=True)
        self.out = nn.Linear(5, 1)

    def forward(self, x):
        x = self.convolve(x[:, None]).flatten(1)
        x = self.squeeze["down"](x * torch.sigmoid(self.squeeze["gate"](x)))[:, None]
        return self.out((x + self.attend(x, x, x, need_weights=False)[0])[:, 0])


class Direct(Model):
    """Its steps call two parts themselves."""

    def __init__(self) -> None:
        super().__init__()
        del self.stem, self.blocks, self.head
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 2))
        self.decoder = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))

    def __call__(self, x):
        return self.decoder(self.encoder(x))


class Skips(Model):
    """A value passes by the modules in the middle, so it can be cut before and after them only."""

    def __init__(self) -> None:
        super().__init__()
        del self.stem, self.blocks, self.head
        torch.manual_seed(0)
        self.first, self.down, self.up, self.last = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.last(x + self.up(torch.tanh(self.down(x))))


class InPlace(Model):
    """Changes what a block returns in place: between stages that is what was received."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))  # they do not need what they return

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
            x += 0.5
            x.mul_(0.9)
        return self.head(x)


class Checkpointed(Model):
    """Its blocks are called again in the backward pass, or, the older way, without gradients first."""

    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class Elsewhere(Model):
    """Its validation does not call the model as its training does."""

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", Model.forward(self, batch["x"]).mean())


class Layers(Model):
    """Its loss uses what comes out of the stem and goes around the blocks."""

    def training_step(self, batch, batch_idx):
        stem = self.stem(batch["x"])
        x = stem
        for block in self.blocks:
            x = x + block(x)
        return nn.functional.mse_loss(self.head(x + stem), batch["y"])


class Tables(Model):
    """The batch has a table beside the samples, with another number of rows."""

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return {**batch, "table": torch.zeros(10)}


class Gathers(Model):
    """Its steps call collectives, in code that one stage of each replica runs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = MeanMetric()

    def training_step(self, batch, batch_idx):
        self.trainer.strategy.barrier()
        if not self.trainer.strategy.reduce_boolean_decision(bool(self.trainer.strategy.broadcast(True))):
            raise ValueError("no replica disagrees")
        own = self(batch["x"])
        everyone = self.all_gather(own, sync_grads=True).flatten(0, 1) if WORLD > 1 else own
        loss = nn.functional.mse_loss(own, batch["y"]) + (everyone - everyone.T).tanh().square().mean()
        self.seen.update(self.trainer.strategy.reduce(loss.detach()))
        self.log("seen", self.seen.compute())
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.all_gather(self(batch["x"])).square().mean(), sync_dist=True)


class Backbone(Model):
    """For ``BackboneFinetuning``: another name of the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = self.blocks


class Unfreeze(callbacks.BaseFinetuning):
    """The last block first, then the rest."""

    def freeze_before_training(self, pl_module):
        self.freeze([pl_module.stem, pl_module.blocks])

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch in (1, 2):
            modules = pl_module.blocks[3] if epoch == 1 else [pl_module.stem, *pl_module.blocks[:3]]
            self.unfreeze_and_add_param_group(modules, optimizer, train_bn=True)


class Predictions(callbacks.BasePredictionWriter):
    def __init__(self) -> None:
        super().__init__("batch")
        self.sums = []

    def write_on_batch_end(self, trainer, module, prediction, indices, batch, batch_index, loader_index):
        self.sums.append(float(prediction.sum()))


class Spikes(callbacks.SpikeDetection):
    """Lightning's, without stopping at every spike of a tiny loss."""


def data(count: int = 32) -> list[dict]:
    random = torch.Generator().manual_seed(7)
    x = torch.randn(count, 6, generator=random)
    y = x.sin().sum(1, keepdim=True)
    return [{"x": x[row], "y": y[row]} for row in range(count)]


def loader(trainer: Trainer, rows: int = 32, batch: int = BATCH) -> DataLoader:
    place = getattr(trainer.strategy, "distributed_sampler_kwargs", {"num_replicas": 1, "rank": 0})
    return DataLoader(
        data(rows), batch // place["num_replicas"], sampler=DistributedSampler(data(rows), **place, shuffle=False)
    )


def make_trainer(own=(), parameters=None, strategy_options=None, **options) -> Trainer:
    chosen = {**PARAMETERS.get(LAYOUT, {}), **(parameters or {})}
    return Trainer(
        strategy="auto" if LAYOUT == "one" else smp_strategy(parameters=chosen, **(strategy_options or {})),
        **PLACE,
        default_root_dir=OUT,
        callbacks=list(own),
        use_distributed_sampler=False,
        **{
            "max_epochs": 3,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **options,
        },
    )


def sums(state) -> dict:
    return {name: float(value.double().sum()) for name, value in state.items()}


def fit(own=(), model=None, resume=None, rows=32, batch=BATCH, **options) -> dict:
    seed_everything(0, verbose=False)
    losses, model = Losses(), model or Model()
    trainer = make_trainer([*own, losses], **options)
    trainer.fit(model, loader(trainer, rows, batch), loader(trainer, 16), ckpt_path=resume)
    trainer.save_checkpoint(OUT / "last.ckpt")
    found = {"losses": losses.values, "epochs": trainer.current_epoch, "steps": trainer.global_step}
    found["metrics"] = {name: float(value) for name, value in trainer.callback_metrics.items()}
    found["weights"] = sums(torch.load(OUT / "last.ckpt", weights_only=False)["state_dict"])
    trainer.strategy.barrier()  # before the next one overwrites it
    return found


def averaged(make, **options) -> dict:
    """The average in the midst of training and in the end; training goes on from the former."""
    folder = OUT / make.__name__
    save = callbacks.ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1, enable_version_counter=False)
    whole = fit([make(), save], enable_checkpointing=True, max_epochs=4, **options)
    stored = torch.load(folder / "epoch=2.ckpt", weights_only=False)
    whole["stored"] = sums(stored["state_dict"])
    states = [state["average_model_state"] for state in stored["callbacks"].values() if "average_model_state" in state]
    whole["kept"] = sums(states[0] if states else stored["current_model_state"])
    whole["rest"] = fit([make()], max_epochs=4, resume=folder / "epoch=2.ckpt", **options)["losses"]
    return whole


def swa():
    return callbacks.StochasticWeightAveraging(0.01, swa_epoch_start=2, annealing_epochs=2)


def mean():
    return callbacks.WeightAveraging()


def ema():
    return callbacks.EMAWeightAveraging(decay=0.9)


class Fails(Model):
    def training_step(self, batch, batch_idx):
        if self.global_step == 3:
            raise ValueError("the third step fails")
        return super().training_step(batch, batch_idx)


def fails_and_saves() -> dict:
    """The checkpoint that is left by an error that all raise, and going on from it."""
    folder = OUT / "failed"
    keep = callbacks.OnExceptionCheckpoint(folder)
    found = {"error": error_of(lambda: fit([keep], Fails(), enable_checkpointing=True))}
    found["saved"] = sums(torch.load(folder / "on_exception.ckpt", weights_only=False)["state_dict"])
    return found


def finder() -> dict:
    """A range test, then training with what it found."""
    search = callbacks.LearningRateFinder(min_lr=1e-4, max_lr=0.1, num_training_steps=24, early_stop_threshold=None)
    found = fit([search], Model(), max_epochs=6)
    return {**found, "searched": search.optimal_lr.results["loss"], "lr": search.optimal_lr.suggestion()}


def watchers() -> dict:
    """Callbacks that only look, all at once; how often those are called that are called by name."""
    seen: list[str] = []
    predictions = Predictions()
    several = [
        callbacks.LambdaCallback(
            on_train_epoch_end=lambda *_: seen.append("epoch"), on_before_zero_grad=lambda *_: seen.append("zero")
        ),
        callbacks.Timer(),
        callbacks.DeviceStatsMonitor(cpu_stats=False),
        callbacks.LearningRateMonitor(),
        callbacks.ThroughputMonitor(lambda batch: len(batch["y"]), window_size=2),
        callbacks.ModelSummary(),
        callbacks.RichModelSummary(),
        callbacks.TQDMProgressBar(leave=True),
        Spikes(warmup=100),
        predictions,
        callbacks.EarlyStopping("val_loss", patience=10),
        callbacks.ModelCheckpoint(OUT / "watched", monitor="val_loss"),
    ]
    found = fit(
        several,
        enable_checkpointing=True,
        enable_model_summary=True,
        enable_progress_bar=True,
        logger=CSVLogger(OUT),
        log_every_n_steps=2,
    )
    trainer = make_trainer([predictions])
    trainer.predict(Model(), loader(trainer, 16))
    return {**found, "seen": seen, "predictions": predictions.sums}


def uneven() -> dict:
    """The last batch has 6 samples for 4 microbatches, then 3, then 1; and with gradients that are accumulated."""
    four = {"parameters": {"microbatches": 4}}
    zero_bubble = {"parameters": {"microbatches": 4, "pipeline": "zero_bubble"}}
    simple = {"parameters": {"microbatches": 4, "pipeline": "simple"}}
    return {
        "uneven": fit(rows=30, max_epochs=1, **four),
        "few": fit(rows=27, max_epochs=1, **zero_bubble),
        "one sample": fit(rows=25, max_epochs=1, **simple),
        "uneven, accumulated": fit(rows=22, accumulate_grad_batches=2, gradient_clip_val=0.5, **four),
    }


def rows() -> dict:
    """Models without a list of blocks, in batches that are uneven too."""
    found = {}
    for kind in (Row, Direct, Skips, Tables):
        if kind is Skips and WORLD > 2:  # it has fewer places to cut than stages
            found[kind.__name__] = None
            continue
        found[kind.__name__] = fit(model=kind(), rows=30, max_epochs=1)
        trainer = make_trainer()
        predictions = trainer.predict(kind(), loader(trainer, 16))
        found[f"{kind.__name__} predicts"] = [float(batch.sum()) for batch in predictions]
    found["Gathers"] = fit(model=Gathers(), max_epochs=1, parameters={"microbatches": 1, "partitions": min(WORLD, 2)})
    return found | {kind.__name__: fit(model=kind(), max_epochs=1) for kind in (InPlace, Checkpointed)}


def batch_norm() -> dict:
    """What it computes for microbatches of 4 is what it computes for batches of 4 whose gradients are accumulated."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addHandler(handler)
    whole = LAYOUT == "one"
    options = {"batch": BATCH // 2, "accumulate_grad_batches": 2} if whole else {}
    found = fit(model=Model(norm=True), **options)
    logger.removeHandler(handler)
    return {
        "weights": found["weights"],
        "val_loss": found["metrics"]["val_loss"],
        "said": [text for text in said if "BatchNorm" in text],
    }


def optimizers() -> dict:
    """Those that update each parameter by itself."""
    names = ("AdamW", "Adafactor") if LAYOUT != "shards" else ("AdamW",)  # Adafactor cannot update DTensors
    return {name: fit(model=Model(optimizer=name), gradient_clip_val=0.5, max_epochs=1) for name in names}


def callbacks_that_work() -> dict:
    found = {
        "plain": fit(),
        "accumulate": fit([callbacks.GradientAccumulationScheduler({0: 1, 1: 2, 2: 4})]),
        "finetune": fit([Unfreeze()]),
        "backbone": fit([callbacks.BackboneFinetuning(1, lambda epoch: 1.5, 0.002)], Backbone()),
        "watchers": watchers(),
        "failed": fails_and_saves(),
    }
    if LAYOUT != "shards":
        found |= {"finder": finder(), "swa": averaged(swa), "mean": averaged(mean), "ema": averaged(ema)}
    return found


def refusals() -> dict:
    if LAYOUT == "one":
        return {}
    pruning = callbacks.ModelPruning("l1_unstructured", amount=0.5)
    found = {
        "pruning": error_of(lambda: fit([pruning])),
        "batch size": error_of(lambda: fit([callbacks.BatchSizeFinder()])),
    }
    if LAYOUT == "shards":
        found |= {make.__name__: error_of(lambda make=make: fit([make()])) for make in (swa, mean, ema)}
        found["finder"] = error_of(finder)
    if LAYOUT == "stages":
        found["lbfgs"] = error_of(lambda: fit(model=Model(optimizer="LBFGS")))
        found["skips"] = error_of(lambda: fit(model=Skips(), strategy_options={"stages_per_rank": 2}))
        found["reentrant"] = error_of(lambda: fit(model=Checkpointed(reentrant=True)))
        found["elsewhere"] = error_of(lambda: fit(model=Elsewhere(), num_sanity_val_steps=0))
        found["layers"] = error_of(lambda: fit(model=Layers()))
        found["sync"] = error_of(lambda: fit(sync_batchnorm=True))
        parts = {"save_distributed_checkpoint": True}
        found["parts"] = error_of(lambda: fit([ema()], strategy_options=parts))
    found["good"] = error_of(lambda: fit(max_epochs=1))
    return found


def main() -> None:
    torch.set_num_threads(1)
    found = {"refusals": refusals(), **callbacks_that_work(), **optimizers()}
    if LAYOUT != "shards":
        found |= {"batch norm": batch_norm(), **uneven(), **rows()}
    (OUT / f"rank-{os.environ.get('RANK', 0)}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
