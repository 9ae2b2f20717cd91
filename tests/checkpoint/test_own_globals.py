# SPDX-License-Identifier: Apache-2.0
"""Checkpoints with objects in them: those of the script itself are read, and code is not run."""

import builtins
import collections
import dataclasses
import enum
import functools
import operator
import os
import pathlib
import pickle
import re
import typing

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_sagemaker import AutoResume
from lightning_sagemaker.checkpoint.atomic_write import CheckpointError
from lightning_sagemaker.checkpoint.own_globals import may_hold, own_globals
from tests.conftest import new_process


class Kind(enum.Enum):
    FIRST = "first"


@dataclasses.dataclass
class Encoder:
    """Fitted to the data, as libraries keep it among a module's hyperparameters."""

    classes: np.ndarray
    path: pathlib.Path
    kind: Kind = Kind.FIRST


class Options(dict):
    """As Lightning's own AttributeDict, which torch does not read as data."""


class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def log(self, name, value):
        """As a LightningModule's."""


class Stranger:
    """No script's own."""


class Module(BoringModel):
    def __init__(self, **values):
        super().__init__()
        self.save_hyperparameters()


VALUES = {
    "encoder": Encoder(np.array([2.0, 3.0]), pathlib.Path("data.csv")),
    "names": np.array(["one", None], dtype=object),
    "options": Options(rate=0.1),
    "loss": Loss(),
    "optimizer": functools.partial(torch.optim.SGD, lr=0.1),
    "ordered": collections.OrderedDict(one=1),
    "span": slice(1, 3),
    "set": frozenset({1, 2}),
    "scalar": np.float64(0.5),
    "types": Options(kind=dict, of=typing.Tuple[str, ...], may=typing.Optional[float], none=type(None)),  # noqa: UP006, UP045
}


def train(folder, epochs, values, callbacks=()):
    new_process()
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    module = Module(**values)
    trainer = Trainer(
        accelerator="cpu", max_epochs=epochs, limit_train_batches=2, limit_val_batches=0,
        callbacks=[AutoResume(folder), *callbacks], **quiet,
    )  # fmt: skip
    trainer.fit(module)
    trainer.save_checkpoint(folder / f"step-{trainer.global_step}.ckpt")
    return trainer


class CountsFrom(Callback):
    """Notes the step at which training began."""

    def on_train_start(self, trainer, module):
        self.step = trainer.global_step


@pytest.mark.parametrize("name", VALUES)
def test_a_run_with_an_object_among_its_hyperparameters_is_resumed(tmp_path, name):
    train(tmp_path, 1, {name: VALUES[name]})
    begun = CountsFrom()
    trainer = train(tmp_path, 2, {name: VALUES[name]}, [begun])
    assert (begun.step, trainer.global_step) == (2, 4)


class HasState(Callback):
    def state_dict(self):
        return {"encoder": VALUES["encoder"]}


def test_a_callback_may_have_objects_in_its_state(tmp_path):
    train(tmp_path, 1, {}, [HasState()])
    assert train(tmp_path, 2, {}, [HasState()]).global_step == 4


class Older(enum.Enum):
    """Written as Python 3.11.0 to 3.11.3 write one."""

    FIRST = "first"

    def __reduce_ex__(self, protocol):
        return getattr, (Older, "FIRST")


def test_a_member_of_an_enum_is_read_as_earlier_pythons_write_it(tmp_path):
    train(tmp_path, 1, {"kind": Older.FIRST})
    assert train(tmp_path, 2, {"kind": Older.FIRST}).global_step == 4


def test_what_the_script_does_not_have_is_refused_by_name(tmp_path):
    train(tmp_path, 1, {"stranger": Stranger(), **VALUES})
    with pytest.raises(CheckpointError, match=r"test_own_globals\.Stranger is among neither .*HINT"):
        train(tmp_path, 2, VALUES)


class Runs:
    """What it is written as calls a function when it is read."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


ATTACKS = {
    "a command": lambda path: Runs(os.system, f"touch {path}"),
    "an expression": lambda path: Runs(eval, f"open({str(path)!r}, 'w')"),
    "a file": lambda path: Runs(open, str(path), "w"),
    "an attribute": lambda path: Runs(getattr, Encoder, "__init__"),
    "a module's method": lambda path: Runs(getattr, Loss(), "register_buffer"),
    "an import": lambda path: Runs(builtins.__import__, "this"),
    "a partial": lambda path: Runs(functools.reduce, os.path.join, [str(path)]),
    "another file": lambda path: Runs(torch.load, str(path)),
    "a pickle": lambda path: Runs(pickle.loads, b"cos\nsystem\n."),
    "an item": lambda path: Runs(operator.getitem, Options(rate=0.1), "rate"),
    "a class": lambda path: Runs(type, "Made", (Encoder,), {}),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_code_in_a_checkpoint_is_not_run(tmp_path, name):
    """Whatever the script's own hyperparameters are."""
    values = {**VALUES, "system": os.system, "attribute": getattr, "expression": eval, "pickle": pickle.loads}
    folder, made = tmp_path / "checkpoints", tmp_path / "made"
    train(folder, 1, VALUES)
    path = next(folder.glob("*.ckpt"))
    content = torch.load(path, weights_only=False)
    torch.save({**content, "attack": ATTACKS[name](made)}, path)
    with pytest.raises(CheckpointError, match=r"and is not loaded, as that could run code .*HINT"):
        train(folder, 2, values)
    assert not made.exists()


def test_what_runs_code_is_nobodys_own():
    callables = [os.system, getattr, eval, open, functools.reduce, pickle.loads, operator.attrgetter("a")]
    found = own_globals([*callables, os.environ, re.compile("a"), functools.partial(os.system, "ls")])
    modules = {name.split(".")[0].strip("_") for name in found if name != "functools.partial"}
    assert not modules & {"os", "posix", "nt", "builtins", "io", "functools", "pickle", "operator"}
    assert "functools.partial" in found


@pytest.mark.parametrize("name", ["log", "forward"])
def test_what_lightning_gives_to_callbacks_and_modules_is_left_out(tmp_path, name):
    torch.save({name: Runs(getattr, Loss(), name)}, tmp_path / "file.pt")
    with may_hold(lambda: [Loss()]):
        assert torch.load(tmp_path / "file.pt", weights_only=True) == {name: None}


class Scales(Loss):
    """As neuralforecast's DistributionLoss: attributes are its own methods."""

    def __init__(self):
        super().__init__()
        self.maps, self.made_by = self.scale, Scales.make

    def scale(self, value):
        return value

    @classmethod
    def make(cls):
        return cls()


def test_an_object_may_have_its_own_methods_in_attributes(tmp_path):
    train(tmp_path, 1, {"loss": Scales()})
    assert train(tmp_path, 2, {"loss": Scales()}).global_step == 4
    torch.save({"loss": Runs(getattr, Scales(), "register_buffer")}, tmp_path / "file.pt")
    with may_hold(lambda: [Scales()]), pytest.raises(pickle.UnpicklingError, match="getattr of Scales"):
        torch.load(tmp_path / "file.pt", weights_only=True)


def test_nothing_else_is_read_outside(tmp_path):
    torch.save({"encoder": VALUES["encoder"]}, tmp_path / "file.pt")
    load = torch.load
    with may_hold(lambda: [VALUES["encoder"]]):
        assert torch.load(tmp_path / "file.pt", weights_only=True)["encoder"].kind is Kind.FIRST
        with (tmp_path / "file.pt").open("rb") as file:
            assert torch.load(file, weights_only=True)["encoder"].path == pathlib.Path("data.csv")
    assert torch.load is load
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "file.pt", weights_only=True)
