# SPDX-License-Identifier: Apache-2.0
"""What every rank runs: the Trainer with tensor parallelism and sharded parameters, or by default with one process.

``sharded_worker.py OUT_DIR`` writes ``OUT_DIR/rank-R.json`` and checkpoints; ``LAYOUTS`` is JSON: name -> ``mp_parameters``.
``TRAINED`` likewise: name -> models. ``OTHER_CHECKPOINTS`` names a folder with checkpoints of one process, to go on from.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
import transformers
from lightning.fabric import Fabric
from lightning.pytorch import Trainer, seed_everything
from torch.utils.data import DataLoader, DistributedSampler

import lightning_sagemaker  # noqa: F401 - registers the strategies
from lightning_sagemaker.strategies.factory import fabric_smp_strategy, smp_strategy

sys.path.insert(0, str(Path(__file__).parent))
from lightning_model import Losses, Model, error_of, samples
from models import make_batch, make_model
from place import PLACE

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
OUT = Path(sys.argv[1])
WORLD = int(os.environ.get("WORLD_SIZE", 1))
NAMES = ("bert", "bert-mlm", "roberta", "distilbert", "llama", "albert")
BATCH = 8


def loader(name: str, trainer: Trainer, batch: int, limit: int | None = None) -> DataLoader:
    data = samples(name)[:limit]
    if WORLD == 1:
        return DataLoader(data, batch)
    degrees = trainer.strategy.degrees
    replica = degrees.coordinates(int(os.environ["RANK"]), WORLD).replica
    copies = degrees.replicas(WORLD)
    return DataLoader(data, batch, sampler=DistributedSampler(data, copies, replica, shuffle=False))


def make_trainer(parameters: dict | None, steps: int = 16, **options) -> Trainer:
    strategy = "auto" if parameters is None else smp_strategy(parameters=parameters, **options)
    return Trainer(
        strategy=strategy,
        **PLACE,
        max_steps=steps,
        gradient_clip_val=0.5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=OUT,
    )


def fit(name: str, parameters: dict | None, path: Path, steps: int = 16, resume: str | None = None, **options) -> dict:
    seed_everything(0, verbose=False)
    trainer, module, losses = make_trainer(parameters, steps, **options), Model(name), Losses()
    copies = 1 if parameters is None else trainer.strategy.degrees.replicas(WORLD)
    trainer.callbacks.append(losses)
    trainer.fit(module, loader(name, trainer, BATCH // copies), loader(name, trainer, 4, 16), ckpt_path=resume)
    trainer.save_checkpoint(path)
    metrics = {key: float(value) for key, value in trainer.callback_metrics.items()}
    predicted = trainer.predict(module, loader(name, trainer, 4, 16))
    return {
        "losses": losses.values,
        "metrics": {
            key: metrics[key] for key in ("val_loss", "val_mean", "train_mean", "loss_epoch") if key in metrics
        },
        "first": [batch["first"].tolist() for batch in predicted],
        "numbers": losses.numbers,
        "strategy": type(trainer.strategy).__name__,
    }


def with_fabric(name: str, parameters: dict | None, path: Path) -> dict:
    """A plain loop, its weights saved and read again by the same layout."""
    seed_everything(0, verbose=False)
    strategy = "auto" if parameters is None else fabric_smp_strategy(parameters=parameters)
    fabric = Fabric(**PLACE, strategy=strategy)
    fabric.launch()
    model = make_model(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = fabric.setup(model, optimizer)
    copies = 1 if parameters is None else strategy.degrees.replicas(WORLD)
    batches = [make_batch(name, samples=8, seed=step) for step in range(8)]
    flat = [{key: value[index] for key, value in batch.items()} for batch in batches for index in range(8)]
    loader = fabric.setup_dataloaders(DataLoader(flat, batch_size=8 // copies))
    losses = []
    for step, batch in enumerate(loader):
        if step == 4:
            content = {"model": model, "optimizer": optimizer, "step": step}
            fabric.save(path, content)
            fabric.load(path, content)
        loss = model(**batch)["loss"]
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(fabric.all_reduce(loss)))
    return {"losses": losses}


def weights(path: Path) -> dict:
    stored = torch.load(path, weights_only=True)
    state = stored["optimizer_states"][0]["state"]
    return {
        "weights": {key: float(value.double().sum()) for key, value in stored["state_dict"].items()},
        "momenta": {str(key): float(entry["momentum_buffer"].double().sum()) for key, entry in state.items()},
    }


def refusals() -> dict:
    four = {"tensor_parallel_degree": 4, "ddp": True}
    return {
        "heads": error_of(lambda: fit("bert", four, OUT / "x.ckpt")) if WORLD == 4 else None,
        "plan": error_of(lambda: fit("plain", {"tensor_parallel_degree": 2, "ddp": True}, OUT / "x.ckpt")),
        "both": error_of(lambda: make_trainer({"partitions": 2, "sharded_data_parallel_degree": 2, "ddp": True})),
        "shards": error_of(lambda: fit("bert", {"hybrid_shard_degree": 3}, OUT / "x.ckpt")),
    }


def main() -> None:
    torch.set_num_threads(1)
    layouts = json.loads(os.environ.get("LAYOUTS", '{"one": null}'))
    trained = json.loads(os.environ.get("TRAINED", "{}"))
    first = os.environ.get("RANK", "0") == "0"
    found: dict = {}
    for layout, parameters in layouts.items():
        for name in trained.get(layout, NAMES):
            path = OUT / f"{layout}-{name}.ckpt"
            found[f"{layout}/{name}"] = fit(name, parameters, path)
            if first:
                found[f"{layout}/{name}"] |= weights(path)
    for layout, parameters in layouts.items():
        found[f"fabric/{layout}"] = with_fabric("bert", parameters, OUT / f"fabric-{layout}.ckpt")
    if WORLD == 1:
        found["half"] = fit("bert", None, OUT / "half.ckpt", steps=8)
    else:
        layout, parameters = next(iter(layouts.items()))
        other = str(Path(os.environ["OTHER_CHECKPOINTS"]) / "half.ckpt")
        found["rest of one"] = fit("bert", parameters, OUT / "rest.ckpt", resume=other)
        folder = OUT / "parts.ckpt"
        fit("bert", parameters, folder, steps=8, save_distributed_checkpoint=True)
        found["parts"] = sorted(file.suffix for file in folder.iterdir())
        *_, last = layouts.values()
        found["rest of parts"] = fit("bert", last, OUT / "rest.ckpt", resume=str(folder))
        saving = {**parameters, "offload_activations": True}
        found["recomputed"] = fit("bert", saving, OUT / "rest.ckpt", activation_checkpointing=True)
        found["refusals"] = refusals()
    (OUT / f"rank-{os.environ.get('RANK', 0)}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
