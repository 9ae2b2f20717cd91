# SPDX-License-Identifier: Apache-2.0
"""Options of ``smdistributed.modelparallel`` that do not exist are errors, and those that AWS documents are taken."""

import subprocess
import sys

import pytest

SCRIPT = """
import pickle, torch, smdistributed.modelparallel.torch as smp
smp.init({"partitions": 1, "microbatches": 2, "ddp": True})
def function(model, x, mask):
    return mask
def error_of(call):
    try:
        call()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    else:
        print("taken")
layer = torch.nn.Linear(2, 1)
build = lambda: torch.optim.SGD(layer.parameters(), lr=0.1)
error_of(lambda: smp.step(function, non_split_inputs=["masks"]))
error_of(lambda: smp.step(input_split_axes={"xs": 1})(function))
error_of(lambda: smp.step(non_split_inputs="mask")(function))
error_of(lambda: smp.step(["mask"], {"x": 1})(function))
error_of(lambda: smp.step(non_split_inputs=["anything"])(lambda model, **batch: None))
error_of(lambda: smp.step(function)(layer, torch.ones(2, 2), torch.ones(2)))
error_of(lambda: smp.DistributedModel("model"))
error_of(lambda: smp.DistributedOptimizer(build(), static_loss_scal=2.0))
error_of(lambda: smp.DistributedOptimizer(build(), None, True, scale_window=1000, min_scale=1))
error_of(lambda: smp.set_activation_checkpointing(layer, strategy="every"))
error_of(lambda: smp.save({}, "file", partal=False))
error_of(lambda: smp.save({}, "file", True, pickle, 2))
error_of(lambda: smp.load("file", None, pickle, {}, True))
error_of(lambda: smp.resume_from_checkpoint("nowhere"))
"""
EXPECTED = [
    "ValueError: @smp.step(non_split_inputs=['masks']) names 'masks', but the arguments of function are model, x, mask",
    "ValueError: @smp.step(input_split_axes={'xs': 1}) names 'xs'",
    "TypeError: @smp.step(non_split_inputs='mask') was set. HINT: set a list",
    "taken",
    "taken",
    "RuntimeError: @smp.step ran function, but there is no smp.DistributedModel",
    "TypeError: smp.DistributedModel('model') was called",
    "TypeError: smp.DistributedOptimizer(static_loss_scal=...) was called",
    "taken",
    "ParallelConfigError: activation checkpointing with strategy='every' was set",
    "TypeError: save() got an unexpected keyword argument 'partal'",
    "taken",
    "taken",
    "FileNotFoundError: nowhere has no file newest",
]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    folder = tmp_path_factory.mktemp("options")
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "lightning_sagemaker", str(folder / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("number", range(len(EXPECTED)), ids=lambda number: EXPECTED[number].split(" HINT")[0][:60])
def test_option(said, number):
    assert len(said) == len(EXPECTED)
    assert said[number].startswith(EXPECTED[number])
