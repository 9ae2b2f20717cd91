# SPDX-License-Identifier: Apache-2.0
"""Errors that scripts written for GPUs, or for other versions, have in a rehearsal."""

import pytest
import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.pytorch import Trainer

from lightning_sagemaker.simulator.hints import hint_for
from lightning_sagemaker.simulator.streams import sentence_of

TRACED = ("Traceback (most recent call last):", '  File "train.py", line 1, in <module>', "    main()")


def needs_gpus(backend):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def test_smddp_needs_its_import():
    """torch's own error about a backend that is not registered, as smddp may be in this process."""
    with pytest.raises((AssertionError, ValueError)) as caught:
        needs_gpus("smddq")
    message = f"{type(caught.value).__name__}: {caught.value}".replace("smddq", "smddp")
    assert "torch_smddp" in (hint_for(message) or ""), message


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "fails",
    [
        lambda: Trainer(accelerator="gpu"),
        lambda: torch.zeros(1).cuda(),
        lambda: needs_gpus("nccl"),
        lambda: Fabric(accelerator="cpu", strategy="fsdp"),
        lambda: torch.cuda.set_device(0),
    ],
    ids=["accelerator", "device", "backend", "fsdp", "set_device"],
)
def test_what_needs_a_gpu_says_what_runs_on_both(fails):
    """The libraries' own errors, so that another wording in another version is noticed."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        fails()
    message = f"{type(caught.value).__name__}: {caught.value}"
    assert "accelerator='auto'" in (hint_for(message) or ""), message
    shown = sentence_of((*TRACED, message))
    assert shown[:-1] == (*TRACED, message)  # where it failed helps
    assert shown[-1].startswith("HINT: this machine has no GPU")


@pytest.mark.parametrize(
    ("module", "advice"),
    [
        ("no_such_thing", "pip install no_such_thing"),
        ("no_such_thing.inside", "pip install no_such_thing here"),
        ("pytorch_lightning.plugins.environments.lightning_environment", "is installed and has no such module"),
    ],
)
def test_missing_modules(module, advice):
    with pytest.raises(ModuleNotFoundError) as caught:
        __import__(module)
    shown = sentence_of((*TRACED, f"ModuleNotFoundError: {caught.value}"))
    assert len(shown) == 2
    assert advice in shown[1]


def test_what_the_images_have():
    hint = hint_for("ModuleNotFoundError: No module named 'sagemaker_training.environment'")
    assert hint == "HINT: AWS's images have it; pip install sagemaker-training here."


def test_the_folder_of_the_containers():
    with pytest.raises(FileNotFoundError) as caught:
        open("/opt/ml/input/data/no such channel/a.csv")  # noqa: SIM115
    assert "SM_MODEL_DIR" in (hint_for(f"FileNotFoundError: {caught.value}") or "")


@pytest.mark.parametrize(
    "words",
    [
        "local variable 'device' referenced before assignment",
        "cannot access local variable 'device' where it is not associated with a value",
    ],
)
def test_transformers_with_smp_and_without_a_gpu(words):
    """Python 3.10's words, and those since."""
    assert "transformers 4.28.1" in (hint_for(f"UnboundLocalError: {words}") or "")


def test_others_have_none():
    assert hint_for("ValueError: no advice") is None
    assert "--network netns" in (hint_for("socket.gaierror: [Errno -2] Name or service not known") or "")
