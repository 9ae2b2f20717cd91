# SPDX-License-Identifier: Apache-2.0
"""Trains with each strategy where an environment of Lightning cannot be asked; writes what was logged."""

import contextlib
import io
import json
import logging
import sys
from importlib import import_module
from pathlib import Path

import lightning_sagemaker
from lightning_sagemaker import trial
from lightning_sagemaker._lightning import PACKAGE, FabricDDPStrategy

_PYTORCH, _FABRIC = (
    ("lightning.pytorch", "lightning.fabric") if PACKAGE == "lightning" else ("pytorch_lightning", "lightning_fabric")
)
pl, fabric = import_module(_PYTORCH), import_module(_FABRIC)
demos = import_module(f"{_PYTORCH}.demos.boring_classes")

SHARDED = {"parameters": {"sharded_data_parallel_degree": 2}}
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def outcome(make):
    try:
        return type(make().strategy).__name__
    except RuntimeError as error:
        return str(error).split("\n")[0]


def main(folder: Path) -> None:
    lines = Lines()
    for name in (_PYTORCH, _FABRIC):
        logging.getLogger(name).addHandler(lines)
    found = {}
    objects = {
        "SageMakerDDPStrategy": (
            lightning_sagemaker.SageMakerDDPStrategy,
            lightning_sagemaker.FabricSageMakerDDPStrategy,
        ),
        "SMDDPStrategy": (lightning_sagemaker.SMDDPStrategy, lightning_sagemaker.FabricSMDDPStrategy),
    }
    for kind, make, index in (("Trainer", pl.Trainer, 0), ("Fabric", fabric.Fabric, 1)):
        quiet = QUIET if index == 0 else {}
        given = {name: lambda name=name: name for name in ("sagemaker", "smddp")}
        given |= {name: classes[index] for name, classes in objects.items()}
        given |= {"ddp": lambda: "ddp", "DDPStrategy": (pl.strategies.DDPStrategy, FabricDDPStrategy)[index]}
        for name, strategy in given.items():
            found[f"{kind} {name}"] = outcome(
                lambda make=make, strategy=strategy, quiet=quiet: make(strategy=strategy(), accelerator="cpu", **quiet)
            )
    found["Trainer smp"] = outcome(
        lambda: pl.Trainer(strategy=lightning_sagemaker.SMPShardedStrategy(**SHARDED), **QUIET)
    )
    trainer = pl.Trainer(strategy="sagemaker", accelerator="cpu", max_steps=2, **QUIET)
    trainer.fit(demos.BoringModel())
    with contextlib.redirect_stdout(io.StringIO()) as asked:
        trial._environments()
    text = {"asked": asked.getvalue(), "outcomes": found, "steps": trainer.global_step, "lines": lines.lines}
    (folder / "rank-0.json").write_text(json.dumps(text))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
