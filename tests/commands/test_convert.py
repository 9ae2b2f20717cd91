# SPDX-License-Identifier: Apache-2.0
"""``lightning-sagemaker convert``: what cannot be read or written is one sentence on stderr."""

import pytest
import torch

from lightning_sagemaker import cli
from lightning_sagemaker.checkpoint.integrity import META


@pytest.fixture
def place(tmp_path):
    (tmp_path / "garbage.ckpt").write_bytes(b"PK\x03\x04 no archive")
    (tmp_path / "empty.ckpt").write_bytes(b"")
    (tmp_path / "text.ckpt").write_text("no checkpoint")
    torch.save([1, 2], tmp_path / "list.ckpt")
    torch.save({"state_dict": {}, "path": tmp_path}, tmp_path / "objects.ckpt")
    torch.save({"state_dict": {"w": torch.ones(2)}}, tmp_path / "good.ckpt")
    (tmp_path / "parts").mkdir()
    torch.save({}, tmp_path / "parts" / META)
    (tmp_path / "file").write_text("in the way")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["garbage.ckpt", "x"], "garbage.ckpt cannot be read as a checkpoint"),
        (["empty.ckpt", "x"], "empty.ckpt cannot be read as a checkpoint"),
        (["text.ckpt", "x"], "text.ckpt cannot be read as a checkpoint"),
        (["objects.ckpt", "x"], "objects.ckpt cannot be read as a checkpoint"),
        (["parts", "x"], "parts cannot be read as a checkpoint"),
        (["list.ckpt", "x"], "list.ckpt holds no state_dict"),
        (["good.ckpt", "file/x"], "HINT: "),
        (["good.ckpt", "x", "--like", "./absent"], "HINT: give an existing checkpoint"),
    ],
)
def test_an_error_is_one_sentence(place, monkeypatch, capsys, words, said):
    monkeypatch.chdir(place)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = sorted(place.rglob("*"))
    assert cli.main(["convert", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("lightning-sagemaker convert: error: ")
    assert shown.err.count("\n") == 1
    assert said in shown.err
    assert sorted(place.rglob("*")) == before
