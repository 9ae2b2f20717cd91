# SPDX-License-Identifier: Apache-2.0
"""The folder of checkpoints is the one that ModelCheckpoint takes the same setting for."""

import os
from types import SimpleNamespace

import pytest
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_sagemaker import InterruptibleLoop, SpotInterruption
from lightning_sagemaker.callbacks.places import checkpoint_folder


@pytest.mark.parametrize("given", ["~/runs/one", "~/runs/one/", "runs/one", "s3://bucket/~/one"])
def test_a_home_folder_is_the_users(given, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = checkpoint_folder(SimpleNamespace(), given)
    lightnings = given if "://" in given else ModelCheckpoint(given).dirpath  # which would look for s3fs
    assert (found if "://" in found else os.path.realpath(found)) == lightnings


def test_a_loop_of_fabric_writes_there_too(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    loop = InterruptibleLoop(Fabric(accelerator="cpu", devices=1), "~/loop", {"n": 0}, save_every=None)
    for _ in loop.epochs(1):
        loop.save()
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]


@pytest.mark.parametrize("keep", [0, -1])
def test_the_last_checkpoint_is_always_kept(keep, tmp_path):
    with pytest.raises(ValueError, match=f"keep={keep} was set. HINT: "):
        SpotInterruption(keep=keep)
    with pytest.raises(ValueError, match=f"keep={keep} was set. HINT: "):
        InterruptibleLoop(Fabric(accelerator="cpu", devices=1), tmp_path, {}, keep=keep)
