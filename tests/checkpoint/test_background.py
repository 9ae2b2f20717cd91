# SPDX-License-Identifier: Apache-2.0
"""A checkpoint beside the training whose other process has died: the first one's thread does not outlive the training."""

import threading

import pytest
import torch
import torch.distributed as dist

from lightning_sagemaker.checkpoint import background


@pytest.mark.parametrize("rank", [0, 1])
def test_nobody_waits_for_a_process_that_does_not_come(rank, tmp_path, monkeypatch):
    monkeypatch.setattr(background, "process_store", dist.HashStore)
    save = background.BackgroundSave(rank, 2, lambda: None)
    save.begin({"w": torch.ones(3)}, {"global_step": 1}, str(tmp_path / "a.ckpt"))
    save.give_up(0.2)
    save._thread.join(5)
    assert not save._thread.is_alive()
    with pytest.raises(Exception, match="no message about"):
        save.finish()
    assert not (tmp_path / "a.ckpt").exists()


def test_an_update_does_not_wait_after_a_save_that_could_not_begin(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "process_store", dist.HashStore)
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    optimizer = torch.optim.AdamW([weight])
    optimizer.step()
    states = {"optimizer_0": {"state": dict(optimizer.state[weight])}}
    save = background.BackgroundSave(0, 1, lambda: None)
    with pytest.raises(Exception, match="local object"):
        save.begin(states, {"rest": lambda: None}, str(tmp_path / "a.ckpt"), {"optimizer_0": optimizer})
    step = threading.Thread(target=optimizer.step, daemon=True)
    step.start()
    step.join(10)
    assert not step.is_alive()
