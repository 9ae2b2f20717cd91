# SPDX-License-Identifier: Apache-2.0
"""What every rank runs: Lightning's whole surface once, under the strategy named on the command line.

``worker.py STRATEGY OUT_DIR`` writes ``OUT_DIR/rank-R.json``: scenario -> its results, or the error it ended with. The
tests compare these between strategies and between numbers of processes; nothing is asserted here.
"""

import contextlib
import json
import os
import re
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torchmetrics
from compiled import compiled
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.plugins import AsyncCheckpointIO
from open_mpi import be_started_by_mpirun
from place import ACCELERATOR, PLACE
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.utils.data import DataLoader, TensorDataset

import lightning_sagemaker  # noqa: F401 - registers the strategies

warnings.filterwarnings("ignore")
if os.environ.get("STARTED_BY") == "mpirun":
    be_started_by_mpirun()
STRATEGY, OUT = sys.argv[1], Path(sys.argv[2])
WORLD = int(os.environ.get("WORLD_SIZE", 1))
GLOBAL_BATCH, SAMPLES = 8, 48
"""`make gpu` runs these scenarios with cuda."""


class Regression(LightningModule):
    """A small regression on data that is a function of the sample's index alone."""

    def __init__(self, hidden: int = 16, learning_rate: float = 0.05, unused: bool = False) -> None:
        super().__init__()
        seed_everything(1, verbose=False)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 1))
        self.unused = torch.nn.Linear(3, 3) if unused else None
        self.learning_rate = learning_rate
        self.seen: list[int] = []
        self.mean_error = torchmetrics.MeanAbsoluteError()

    def loss(self, batch):
        x, y, index = batch
        return torch.nn.functional.mse_loss(self.net(x), y), index

    def training_step(self, batch, batch_idx):
        loss, index = self.loss(batch)
        self.seen += index.tolist()
        self.log("train_loss", loss, sync_dist=True, on_epoch=True, on_step=False)
        self.log("train_max", loss, sync_dist=True, reduce_fx="max", on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch, batch_idx):
        loss, _ = self.loss(batch)
        self.mean_error(self.net(batch[0]), batch[1])
        self.log("val_loss", loss, sync_dist=True)
        self.log("val_error", self.mean_error)

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.loss(batch)[0], sync_dist=True)

    def predict_step(self, batch, batch_idx):
        return {int(i): float(p) for i, p in zip(batch[2], self.net(batch[0])[:, 0], strict=True)}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate, momentum=0.9)

    def train_dataloader(self):
        return loader()

    val_dataloader = test_dataloader = predict_dataloader = lambda self: loader()


def loader() -> DataLoader:
    x = torch.linspace(-1, 1, SAMPLES * 4).reshape(SAMPLES, 4).cos()
    y = x.sum(1, keepdim=True).sin()
    # Without shuffling, the ranks' batches of one step hold the samples of the single process's batch.
    return DataLoader(TensorDataset(x, y, torch.arange(SAMPLES)), batch_size=GLOBAL_BATCH // WORLD)


def make_trainer(**arguments) -> Trainer:
    if STRATEGY.startswith("ddp"):
        arguments |= PLACE
    defaults = {
        "strategy": STRATEGY,
        "accelerator": ACCELERATOR,
        "max_epochs": 2,
        "logger": False,
        "deterministic": True,
    }
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    return Trainer(**(defaults | quiet | {"num_sanity_val_steps": 0, "default_root_dir": OUT} | arguments))


def weights(model: LightningModule) -> list[float]:
    return torch.cat([p.detach().flatten() for p in model.net.parameters()]).tolist()


def numbers(metrics) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def fit():
    model, trainer = Regression(), make_trainer()
    trainer.fit(model)
    return {
        "weights": weights(model),
        "metrics": numbers(trainer.callback_metrics),
        "seen": model.seen,
        "world_size": trainer.world_size,
        "num_nodes": trainer.num_nodes,
        "num_devices": trainer.num_devices,
        "rank": trainer.global_rank,
        "local_rank": trainer.local_rank,
        "node_rank": trainer.node_rank,
    }


def fit_compiled() -> dict:
    """A compiled module given to the Trainer, where the compilers are named: it takes long."""
    results = {}
    for backend in filter(None, os.environ.get("COMPILERS", "").split(",")):
        torch._dynamo.reset()
        model = Regression()
        try:
            make_trainer().fit(torch.compile(model, backend=backend))
            results[f"Trainer, {backend}"] = weights(model)
        except torch._dynamo.exc.InternalTorchDynamoError as error:  # of torch 2.13, which cannot compile ``self.log``
            results[f"Trainer, {backend}"] = str(error).splitlines()[0]
    return results


def _fit_with(**arguments):
    def run():
        model = Regression(unused=arguments.pop("unused", False))
        trainer = make_trainer(**arguments)
        trainer.fit(model)
        return {"weights": weights(model), "metrics": numbers(trainer.callback_metrics)}

    return run


def evaluate():
    model, trainer = Regression(), make_trainer()
    validated = trainer.validate(model, verbose=False)
    tested = trainer.test(model, verbose=False)
    predicted = trainer.predict(model)
    merged = {str(k): v for batch in predicted for k, v in batch.items()}
    return {"validate": numbers(validated[0]), "test": numbers(tested[0]), "predict": merged}


class KeepsAValidation(Regression):
    """Trains with a tensor that a validation has made, which a tensor of inference mode does not allow."""

    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        self.kept = self.net(batch[0]).mean()

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.kept


def keep_a_validation():
    model = KeepsAValidation()
    make_trainer().validate(model, verbose=False)
    make_trainer(limit_val_batches=0).fit(model)
    return {"weights": weights(model)}


class Reductions(torchmetrics.Metric):
    """A metric with a state of every reduction that torchmetrics knows."""

    def __init__(self) -> None:
        super().__init__()
        for kind in ("sum", "mean", "max", "min"):
            self.add_state(kind, torch.tensor(0.0), dist_reduce_fx=kind)
        self.add_state("cat", [], dist_reduce_fx="cat")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("custom", torch.tensor(0.0), dist_reduce_fx=lambda stacked: stacked.prod(0))

    def update(self, value):
        for kind in ("sum", "mean", "max", "min", "custom"):
            setattr(self, kind, value.clone())
        self.cat.append(value[None])
        self.count += 3

    def compute(self):
        values = {kind: float(getattr(self, kind)) for kind in ("sum", "mean", "max", "min", "count", "custom")}
        return values | {"cat": torchmetrics.utilities.dim_zero_cat(self.cat).tolist()}


def torchmetrics_reductions():
    metric = Reductions()
    metric.update(torch.tensor(float(dist.get_rank() + 2)))
    return metric.compute()


def collectives():
    model, trainer = Regression(), make_trainer(max_epochs=0)
    trainer.fit(model)
    rank, strategy = dist.get_rank(), trainer.strategy
    leaf = torch.tensor([1.0 + rank], requires_grad=True)
    (strategy.all_gather(leaf, sync_grads=True) * torch.arange(1.0, WORLD + 1)[:, None]).sum().backward()
    reduced = {
        op: float(strategy.reduce(torch.tensor(rank + 1.0), reduce_op=op)) for op in ("mean", "sum", "max", "min")
    }
    gathered = torch.zeros(WORLD)
    dist.all_gather_into_tensor(gathered, torch.tensor([float(rank)]))
    scattered = torch.zeros(1)
    dist.reduce_scatter_tensor(scattered, torch.arange(float(WORLD)))
    product = torch.tensor(rank + 1.0)
    dist.all_reduce(product, op=dist.ReduceOp.PRODUCT)
    average = torch.tensor([rank + 1.0])
    dist.all_reduce(average, op=dist.ReduceOp.SUM, async_op=True).wait()
    integer_mean = strategy.reduce(torch.tensor(rank * 3), reduce_op="mean")
    pair = dist.new_group(list(range(WORLD)))
    in_pair = torch.tensor(rank + 1.0)
    dist.all_reduce(in_pair, group=pair)
    return {
        "all_gather": trainer.strategy.all_gather(torch.tensor([float(rank)])).flatten().tolist(),
        "all_gather_gradient": leaf.grad.tolist(),
        "broadcast": strategy.broadcast({"rank": rank}, src=WORLD - 1),
        "reduced": reduced,
        "decisions": [strategy.reduce_boolean_decision(rank == 0, all=all_of) for all_of in (True, False)],
        "into_tensor": gathered.tolist(),
        "reduce_scatter": scattered.tolist(),
        "product": float(product),
        "async": average.tolist(),
        "integer_mean": int(integer_mean),
        "subgroup": float(in_pair),
        "barrier": strategy.barrier() is None,
    }


def average_directly():
    value = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(value, op=dist.ReduceOp.AVG)
    return value.tolist()


def early_stopping():
    class Diverging(Regression):
        def validation_step(self, batch, batch_idx):
            # Only the mean over the ranks rises from epoch 2 on: no rank can decide alone.
            self.log("bad", float(max(self.current_epoch, 2) * (1 + dist.get_rank())), sync_dist=True)

    trainer = make_trainer(max_epochs=10, callbacks=[EarlyStopping("bad", patience=2)])
    trainer.fit(Diverging())
    return {"stopped": trainer.current_epoch}


def checkpoint():
    model, trainer = Regression(), make_trainer(max_epochs=1)
    trainer.fit(model)
    path = OUT / "one-epoch.ckpt"
    trainer.save_checkpoint(path)
    return {"path": str(path), **resume(path)}


def asynchronous_checkpoint():
    """The plugin has nothing inside: the strategy says what writes the file."""
    model, trainer = Regression(), make_trainer(max_epochs=1, plugins=AsyncCheckpointIO())
    trainer.fit(model)
    path = OUT / "asynchronous.ckpt"
    trainer.save_checkpoint(path)
    trainer.strategy.checkpoint_io.teardown()
    trainer.strategy.barrier()
    return {**resume(path), "state": sorted(torch.load(path, weights_only=True)["state_dict"])}


def monitored_barrier():
    dist.monitored_barrier()
    group = dist.new_group()  # a barrier that ran out of time leaves its group unusable
    dist.monitored_barrier(group, timeout=timedelta(minutes=1))
    late = ""
    if dist.get_rank() == 0:
        try:
            dist.monitored_barrier(group, timeout=timedelta(seconds=0.5), wait_all_ranks=True)
        except RuntimeError as error:
            late = re.search(r"[Rr]anks? 1(, [0-9]+)* failed", str(error)).group()
    dist.barrier()
    return late


def resume(path: Path):
    model, trainer = Regression(), make_trainer(max_epochs=2)
    trainer.fit(model, ckpt_path=path)
    return {"weights": weights(model)}


def resume_from_the_other_strategy():
    other = os.environ.get("OTHER_CHECKPOINT")
    return resume(Path(other)) if other else None


def comm_hooks():
    class Hook(Callback):
        def __init__(self, state, hook):
            self.state, self.hook = state, hook

        def on_train_start(self, trainer, pl_module):
            trainer.strategy.model.register_comm_hook(self.state, self.hook)

    results = {}
    for name in ("allreduce", "power_sgd"):
        if name == "allreduce":
            hook = Hook(None, default_hooks.allreduce_hook)
        else:
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
            hook = Hook(state, powerSGD_hook.powerSGD_hook)
        model = Regression()
        make_trainer(callbacks=[hook]).fit(model)
        results[name] = weights(model)
    return results


def sync_batchnorm():
    class Normalized(Regression):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(4)

    model, trainer = Normalized(), make_trainer(sync_batchnorm=True)
    # torch refuses to train SyncBatchNorm on a CPU, so here the conversion and the refusal are what can be compared.
    converted = trainer.strategy._layer_sync.apply(model)
    make_trainer(sync_batchnorm=True, max_steps=1).fit(converted)


def _unused_strategy() -> str:
    return f"{STRATEGY}_find_unused_parameters_true"


def cli():
    classes = {"ddp": "lightning.pytorch.strategies.DDPStrategy", "smddp": "lightning_sagemaker.SMDDPStrategy"}
    results = {}
    for name, strategy in {"string": STRATEGY, "class_path": json.dumps({"class_path": classes[STRATEGY]})}.items():
        arguments = ["fit", f"--trainer.strategy={strategy}", "--model.hidden=8", "--trainer.max_epochs=1"]
        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
        if STRATEGY == "ddp":
            arguments += [f"--trainer.{name}={PLACE[name]}" for name in ("devices", "num_nodes")]
        command = LightningCLI(
            Regression,
            args=arguments,
            save_config_callback=None,
            trainer_defaults={"accelerator": ACCELERATOR, "num_sanity_val_steps": 0, **quiet},
        )
        results[name] = {"weights": weights(command.model), "strategy": type(command.trainer.strategy).__name__}
    return results


SCENARIOS = {
    "fit": fit,
    "accumulate_and_clip": _fit_with(accumulate_grad_batches=2, gradient_clip_val=0.1),
    "bf16_mixed": _fit_with(precision="bf16-mixed"),
    "16_mixed": _fit_with(precision="16-mixed"),
    "unused_parameters": _fit_with(unused=True, strategy=_unused_strategy()),
    "evaluate": evaluate,
    "keep_a_validation": keep_a_validation,
    "torchmetrics": torchmetrics_reductions,
    "collectives": collectives,
    "average_directly": average_directly,
    "early_stopping": early_stopping,
    "checkpoint": checkpoint,
    "resume_from_the_other_strategy": resume_from_the_other_strategy,
    "comm_hooks": comm_hooks,
    "sync_batchnorm": sync_batchnorm,
    "cli": cli,
    "asynchronous_checkpoint": asynchronous_checkpoint,
    "monitored_barrier": monitored_barrier,
    "compiled": lambda: compiled(STRATEGY) | fit_compiled(),
}


ON_DEVICE = ("collectives", "average_directly", "torchmetrics")
"""Those that make tensors of their own to send."""


def main() -> None:
    results = {}
    chosen = os.environ.get("SCENARIOS", ",".join(SCENARIOS)).split(",")
    for name in chosen:
        try:
            with torch.device(ACCELERATOR) if name in ON_DEVICE else contextlib.nullcontext():
                results[name] = SCENARIOS[name]()
        except Exception as error:  # the tests look at what went wrong
            results[name] = {"error": f"{type(error).__name__}: {error}"}
    if dist.is_initialized():
        results["backend"] = dist.get_backend()
    rank = int(os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", 0)))
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"rank-{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
