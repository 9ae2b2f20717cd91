# SPDX-License-Identifier: Apache-2.0
"""What every rank runs: models whose parameters get values on the stages that need them, against models as always.

``delayed_worker.py OUT_DIR SCENARIOS`` writes ``OUT_DIR/rank-R.json``: scenario -> its results.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torchmetrics
import transformers
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader

import lightning_sagemaker  # noqa: F401 - registers the strategies
from lightning_sagemaker.parallel.allocator import trim_heap
from lightning_sagemaker.parallel.microbatches import split
from lightning_sagemaker.smdistributed import importer
from lightning_sagemaker.strategies.model_parallel import SMPStrategy

sys.path.insert(0, str(Path(__file__).parent))
from lightning_model import Losses, Model, error_of, make_model, samples
from limited import limit_memory
from models import make_batch
from place import PLACE

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
OUT, SCENARIOS = Path(sys.argv[1]), sys.argv[2:]
WORLD, RANK = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
MEBI = 2**20
MODELS = ("bert-mlm", "gpt2", "plain-tied")
SETS_BUFFERS = int(transformers.__version__.partition(".")[0]) >= 5
"""Whether its models' initializers set buffers, too."""
WIDTH, LAYERS, LIMIT = 2048, 16, 210 * MEBI  # 16 matrices of 16 MiB


class Late(Model):
    """Made in ``configure_model``, by the hook that Lightning has for large models."""

    def __init__(self, name: str, on_meta: bool = False) -> None:
        LightningModule.__init__(self)
        self.net, self.name, self.on_meta, self.bad = None, name, on_meta, None
        self.train_loss, self.mean_loss = torchmetrics.MeanMetric(), torchmetrics.MeanMetric()
        self.kept, self.rows, self.hooks = [], 0, []

    def configure_model(self):
        if self.net is None and self.on_meta:
            with torch.device("meta"):
                self.net = make_model(self.name)
        elif self.net is None:
            self.net = make_model(self.name)


class Wide(LightningModule):
    """A row of large matrices, of which few numbers are trained."""

    def __init__(self, file: str | None = None) -> None:
        super().__init__()
        self.blocks, self.file = None, file

    def configure_model(self):
        if self.blocks is not None:
            return
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)))
        for name, parameter in self.blocks.named_parameters():
            parameter.requires_grad_("bias" in name)
        if self.file:
            self.load_state_dict(torch.load(self.file, mmap=True))

    def training_step(self, batch, batch_idx):
        return self.blocks(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD([one for one in self.parameters() if one.requires_grad], lr=10.0)


class Saves(Callback):
    """Saves before the first step."""

    def on_fit_start(self, trainer, module):
        trainer.save_checkpoint(OUT / "before.ckpt")


def make_trainer(callbacks=(), parts=False, *, delayed=False, tensor=1, **options) -> Trainer:
    parameters = {"partitions": WORLD // tensor, "microbatches": 2, "ddp": True, "tensor_parallel_degree": tensor}
    parameters["delayed_parameter_initialization"] = delayed
    strategy = SMPStrategy(parameters=parameters, save_distributed_checkpoint=parts) if WORLD > 1 else "auto"
    settings = {"max_steps": 5, "logger": False, "enable_checkpointing": False, **options}
    return Trainer(
        strategy=strategy,
        **PLACE,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=OUT,
        callbacks=list(callbacks),
        **settings,
    )


def fit(module, callbacks=(), ckpt_path=None, save=None, **options) -> list[float]:
    seed_everything(0, verbose=False)
    losses = Losses()
    trainer = make_trainer([losses, *callbacks], **options)
    trainer.fit(module, DataLoader(samples(module.name), 8), ckpt_path=ckpt_path)
    if save is not None:
        trainer.save_checkpoint(OUT / save)
    return losses.values


def equality() -> dict:
    """Losses, weights, and the place of the parameters."""
    found = {}
    for name in MODELS:
        module = Late(name)
        found[name] = {"as always": fit(Model(name)), "delayed": fit(module, delayed=True)}
        found[name]["numbers"] = sum(parameter.numel() for parameter in module.parameters())
        found[name]["whole"] = sum(parameter.numel() for parameter in Model(name).parameters())
    return found


def again() -> dict:
    """A second fit and a validation of a module that has stayed partitioned."""
    module, trainer = Late("bert-mlm"), make_trainer(delayed=True)
    seed_everything(0, verbose=False)
    data = DataLoader(samples("bert-mlm"), 8)
    trainer.fit(module, data)
    validated = trainer.validate(module, data, verbose=False)[0]["val_mean"]
    state = trainer.strategy.lightning_module_state_dict()
    plain = Model("bert-mlm")
    if RANK == 0:
        plain.load_state_dict(state)
        batches = [plain.net(**batch)["loss"].item() for batch in data]
        return {"validated": validated, "expected": sum(batches) / len(batches)}
    return {"validated": validated, "names": len(state)}


def checkpoints() -> dict:
    """Five steps as always, two of them from checkpoints of several kinds."""
    name = "bert-mlm"
    fit(Model(name), max_steps=3, save="as-always.ckpt")
    found = {"expected": fit(Model(name), ckpt_path=OUT / "as-always.ckpt")}
    fit(Late(name), max_steps=3, save="delayed.ckpt", delayed=True)
    fit(Late(name), max_steps=3, save="parts", delayed=True, parts=True)
    for file in ("as-always.ckpt", "delayed.ckpt", "parts"):
        found[file] = fit(Late(name), ckpt_path=OUT / file, delayed=True, parts=file == "parts")
    if SETS_BUFFERS:
        found["on meta"] = fit(Late(name, on_meta=True), ckpt_path=OUT / "as-always.ckpt")
    fit(Late(name), [Saves()], max_steps=1, delayed=True)
    saved = torch.load(OUT / "before.ckpt", weights_only=True)["state_dict"]
    seed_everything(0, verbose=False)
    expected = Model(name).state_dict()
    found["before"] = all(torch.equal(saved[key], value) for key, value in expected.items())
    return found


def on_meta() -> dict:
    """Made by the script on the meta device: values of each module's own initializer, buffers computed again."""
    found = {}
    for name in ("llama", "plain") if SETS_BUFFERS else ("plain",):
        module = Late(name, on_meta=True)
        losses = fit(module)
        buffers = {
            key: bool(torch.equal(one, other))
            for (key, one), (_, other) in zip(module.net.named_buffers(), make_model(name).named_buffers(), strict=True)
        }
        found[name] = {"losses": losses, "buffers": buffers}
    return found


class Unknown(nn.Module):
    """Has values that only its constructor knows."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


class Forgets(nn.Linear):
    """Does not set its buffer again."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("steps", torch.arange(3), persistent=False)


def refusals() -> dict:
    found = {}
    module = Model("plain")
    with torch.device("meta"):
        module.extra = Unknown()
    found["unknown"] = error_of(lambda: fit(module))
    found["before groups"] = not dist.is_initialized()
    module = Model("plain")
    with torch.device("meta"):
        module.extra = Forgets()
    found["buffer"] = error_of(lambda: fit(module))
    found["good"] = error_of(lambda: fit(Model("plain"), max_steps=1))
    return found


def tensor() -> dict:
    """Stages whose matrices are shared as well."""
    return {"as always": fit(Model("bert"), tensor=2), "delayed": fit(Late("bert"), tensor=2, delayed=True)}


def shim() -> dict:
    """A script of AWS's library."""
    importer.install()
    import smdistributed.modelparallel.torch as smp

    smp.init({"partitions": 2, "microbatches": 2, "ddp": True})
    with smp.delay_param_initialization():
        network = make_model("bert-mlm")
    on_meta = all(parameter.is_meta for parameter in network.parameters())
    whole, batch = make_model("bert-mlm"), make_batch("bert-mlm")
    model = smp.DistributedModel(network)
    before = model.state_dict()

    @smp.step
    def train(model, input_ids, attention_mask, labels):
        loss = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels)["loss"]
        model.backward(loss)
        return loss

    loss = float(train(model, **batch).reduce_mean())
    parts = [whole(**part)["loss"].item() for part in split(batch, 2)]
    same = all(torch.equal(before[name], value) for name, value in whole.state_dict().items())
    own = sum(parameter.numel() for parameter in network.parameters())
    total = sum(parameter.numel() for parameter in whole.parameters())
    return {"on meta": on_meta, "loss": loss, "expected": sum(parts) / 2, "same": same, "share": own / total}


def _wide(file: str | None = None) -> list[float]:
    losses = Losses()
    data = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(1))
    trainer = make_trainer([losses], delayed=True, max_steps=2)
    module = Wide(file)
    trainer.fit(module, DataLoader(data, 8))
    for parameter in module.parameters():  # something may refer to it for a while
        parameter.data = parameter.data.new_empty(0)
    trim_heap()
    return losses.values


def reference() -> dict:
    """One process, without a limit; and a file of weights."""
    found = {"seeded": _wide()}
    module = Wide()
    module.configure_model()
    torch.save({name: value.flip(0) for name, value in module.state_dict().items()}, OUT / "wide.pt")
    return {**found, "loaded": _wide(str(OUT / "wide.pt"))}


def limited() -> dict:
    kind = limit_memory(LIMIT)
    return {"kind": kind, "process": os.getpid(), "seeded": _wide(), "loaded": _wide(os.environ["WIDE_FILE"])}


def as_always() -> dict:
    """What is not to end."""
    (OUT / "process").write_text(f"{os.getpid()} {limit_memory(LIMIT)}")
    Wide().configure_model()
    return {}


def main() -> None:
    torch.set_num_threads(1)
    found = {name: globals()[name]() for name in SCENARIOS}
    (OUT / f"rank-{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
