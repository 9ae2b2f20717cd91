# SPDX-License-Identifier: Apache-2.0
"""What every rank runs: the Trainer under ``"smp"``, or under its default with one process.

``smp_worker.py OUT_DIR PARTITIONS [TENSOR]`` writes ``OUT_DIR/rank-R.json``: scenario -> its results.
A checkpoint of another layout, to go on from, is ``OTHER_CHECKPOINT``; ``BRIEF`` leaves out what others show.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
import transformers
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.utils.data import DataLoader, DistributedSampler

import lightning_sagemaker  # noqa: F401 - registers the strategies
from lightning_sagemaker.strategies.model_parallel import SMPStrategy

sys.path.insert(0, str(Path(__file__).parent))
from lightning_model import Losses, Model, error_of, samples
from place import ACCELERATOR, PLACE

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
OUT, PARTITIONS = Path(sys.argv[1]), int(sys.argv[2])
WORLD = int(os.environ.get("WORLD_SIZE", 1))
TENSOR = int(sys.argv[3]) if len(sys.argv) > 3 else 1
REPLICAS = WORLD // (PARTITIONS * TENSOR)
GLOBAL_BATCH = 8
PARAMETERS = {"partitions": PARTITIONS, "microbatches": 2, "ddp": True, "tensor_parallel_degree": TENSOR}
SAVING = {"activation_checkpointing": True, "offload_activations": True}
OTHER = os.environ.get("OTHER_CHECKPOINT")


def make_strategy(**options):
    if WORLD == 1:
        return "auto"
    schedule, recompute = options.pop("schedule", "interleaved"), options.pop("activation_checkpointing", False)
    parameters = {**PARAMETERS, "pipeline": schedule, **options}
    return SMPStrategy(parameters=parameters, activation_checkpointing=recompute)


def loader(name: str, trainer: Trainer, batch_size: int, limit: int | None = None) -> DataLoader:
    data = samples(name)[:limit]
    place = getattr(trainer.strategy, "distributed_sampler_kwargs", {"num_replicas": 1, "rank": 0})
    return DataLoader(data, batch_size, sampler=DistributedSampler(data, **place, shuffle=False))


def make_trainer(callbacks=(), strategy=None, **options) -> Trainer:
    settings = {"max_steps": 20, "gradient_clip_val": 0.5, "logger": False, "enable_checkpointing": False, **options}
    return Trainer(
        strategy=strategy or make_strategy(),
        **PLACE,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=OUT,
        callbacks=list(callbacks),
        **settings,
    )


def fit(name: str, trainer: Trainer, module=None, ckpt_path=None) -> dict:
    seed_everything(0, verbose=False)
    module = module or Model(name)
    losses = Losses()
    trainer.callbacks.append(losses)
    train = loader(name, trainer, GLOBAL_BATCH // REPLICAS)
    trainer.fit(module, train, loader(name, trainer, 4, 16), ckpt_path=ckpt_path)
    metrics = {key: float(value) for key, value in trainer.callback_metrics.items()}
    weights = {key: value.double().sum().item() for key, value in module.state_dict().items()}
    sizes = {key: list(value.shape) for key, value in module.state_dict().items()}
    return {
        "losses": losses.values,
        "metrics": metrics,
        "weights": weights,
        "sizes": sizes,
        "rows": module.rows,
        "hooks": module.hooks[:6],
    }


def half_precision() -> dict:
    """With a scale so large that the first steps overflow, on some stages only."""
    scaler = torch.amp.GradScaler(ACCELERATOR, init_scale=2.0**22)
    plugin = MixedPrecision("16-mixed", ACCELERATOR, scaler)
    trainer = make_trainer(max_steps=8, plugins=[plugin])
    return {**fit("bert", trainer), "scale": scaler.get_scale()}


def parts() -> dict:
    """Half of a run, of which each rank saves its stage while the model is cut; the other half, from it and another's."""
    save = ModelCheckpoint(OUT, filename="parts", every_n_train_steps=8, save_top_k=1, enable_version_counter=False)
    strategy = SMPStrategy(parameters=PARAMETERS, save_distributed_checkpoint=True)
    half = fit("bert-mlm", make_trainer([save], strategy, max_steps=8, enable_checkpointing=True))
    found = {"half of parts": half["losses"]}
    if OTHER:
        folders = {"parts": OUT, "other parts": Path(OTHER).parent}
        for name, folder in folders.items():
            if (folder / "parts.ckpt").is_dir():
                found[f"rest of {name}"] = fit("bert-mlm", make_trainer(max_steps=16), ckpt_path=folder / "parts.ckpt")[
                    "losses"
                ]
    if os.environ.get("RANK") == "0":
        reader = torch.distributed.checkpoint.FileSystemReader(OUT / "parts.ckpt")
        keys = reader.read_metadata().state_dict_metadata
        found["files"] = len(list((OUT / "parts.ckpt").glob("*.distcp")))
        found["keys"] = sum(key.startswith("state_dict.") for key in keys)
    return found


def checkpoints() -> dict:
    """Half of a run, saved; the other half, from it and from another layout's."""
    half = make_trainer(max_steps=10)
    found = {"half": fit("bert-mlm", half)["losses"]}
    path = OUT / "half.ckpt"
    half.save_checkpoint(path)
    stored = torch.load(path, weights_only=True)
    found["shapes"] = {key: list(value.shape) for key, value in stored["state_dict"].items()}
    momenta = stored["optimizer_states"][0]["state"]
    found["momenta"] = {str(key): list(value["momentum_buffer"].shape) for key, value in momenta.items()}
    found["rest"] = fit("bert-mlm", make_trainer(), ckpt_path=path)["losses"]
    if OTHER:
        found["rest of other"] = fit("bert-mlm", make_trainer(), ckpt_path=OTHER)["losses"]
    if WORLD > 1:
        found |= parts()
    return found


def evaluation() -> dict:
    trainer = make_trainer()
    module = Model("bert")
    validated = trainer.validate(module, loader("bert", trainer, 4, 22), verbose=False)
    tested = trainer.test(module, loader("bert", trainer, 4, 16), verbose=False)
    predicted = trainer.predict(module, loader("bert", trainer, 4, 16))
    return {
        "validated": validated,
        "tested": tested,
        "first": [batch["first"].tolist() for batch in predicted],
        "logits": [batch["logits"].sum().item() for batch in predicted],
    }


def callbacks() -> dict:
    """Those that decide by a metric decide alike on all ranks."""
    best = ModelCheckpoint(OUT / "best", monitor="val_loss", save_top_k=1, filename="{step}")
    stop = EarlyStopping("val_loss", min_delta=10.0, patience=1)
    trainer = make_trainer([best, stop], max_steps=40, val_check_interval=4, enable_checkpointing=True)
    result = fit("bert", trainer)
    score = float(best.best_model_score)
    return {
        "steps": trainer.global_step,
        "best": Path(best.best_model_path).name,
        "score": score,
        "rows": result["rows"],
    }


def save_below_a_file() -> None:
    """Only the first process makes the folder, so only it sees that it cannot."""
    blocked = OUT / "file"
    blocked.touch()
    strategy = SMPStrategy(parameters=PARAMETERS, save_distributed_checkpoint=True)
    trainer = make_trainer(strategy=strategy, max_steps=1)
    fit("bert", trainer)
    trainer.save_checkpoint(blocked / "parts.ckpt")


def refusals() -> dict:
    """What each rank raises; afterwards, whether training still works."""
    if WORLD == 1:
        return {}
    found = {"twice": error_of(lambda: fit("bert", make_trainer(), Model("bert", bad="twice")))}
    found["partitions"] = error_of(lambda: fit("bert", make_trainer(strategy=make_strategy(partitions=5 * WORLD))))
    found["only forward"] = error_of(
        lambda: fit("bert", make_trainer(strategy=make_strategy(schedule="_only_forward")))
    )
    found["pickle"] = error_of(lambda: fit("bert", make_trainer(), Model("bert", bad="pickle")))
    found["path"] = error_of(lambda: save_below_a_file())
    if TENSOR > 1:
        plain = Model("plain")
        sizes = [parameter.numel() for parameter in plain.parameters()]
        found["plan"] = error_of(lambda: fit("plain", make_trainer(), plain))
        found["unchanged"] = sizes == [parameter.numel() for parameter in plain.parameters()]
    manual = Model("bert")
    manual.automatic_optimization = False
    found["by hand"] = error_of(lambda: fit("bert", make_trainer(gradient_clip_val=None), manual))
    found["zero bubble"] = error_of(lambda: make_strategy(schedule="zero_bubble", **SAVING))
    found["unknown"] = error_of(lambda: make_strategy(partition=2))
    found["good"] = error_of(lambda: fit("bert", make_trainer(max_steps=2)))
    return found


def main() -> None:
    torch.set_num_threads(1)
    found = {
        "bert": fit("bert", make_trainer()),
        "bert-mlm": fit("bert-mlm", make_trainer()),
        "gpt2": fit("gpt2", make_trainer(strategy=make_strategy(schedule="simple"))) if TENSOR == 1 else None,
        "accumulate": fit("bert-mlm", make_trainer(max_steps=8, accumulate_grad_batches=2)),
        "checkpoints": checkpoints(),
        "refusals": refusals(),
        "callbacks": callbacks(),
    }
    if not os.environ.get("BRIEF"):
        found |= {
            "bf16": fit("bert", make_trainer(max_steps=8, precision="bf16-mixed")),
            "fp16": half_precision(),
            "recomputed": fit("bert", make_trainer(strategy=make_strategy(**SAVING), max_steps=8)),
            "evaluation": evaluation(),
        }
    (OUT / f"rank-{os.environ.get('RANK', 0)}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
