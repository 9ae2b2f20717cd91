# SPDX-License-Identifier: Apache-2.0
import errno
import json
from pathlib import Path

import pytest

from lightning_sagemaker import export_huggingface
from lightning_sagemaker.checkpoint.atomic_write import CheckpointError, atomic_write


class Model:
    def __init__(self, *files, fails=False):
        self.files, self.fails = files, fails

    def save_pretrained(self, folder, **_):
        for name in self.files:
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"new {name}")
        if self.fails:
            raise OSError("disk full")


MODEL = Model("config.json", "model.safetensors")


def content(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_writes_model_and_tokenizer(tmp_path):
    folder = export_huggingface(MODEL, tmp_path / "a" / "model", Model("tokenizer.json", "extra/vocab.txt"))
    assert set(content(folder)) == {"config.json", "model.safetensors", "tokenizer.json", "extra/vocab.txt"}


@pytest.mark.parametrize(
    ("saved", "expected"),
    [("TokenizersBackend", "PreTrainedTokenizerFast"), ("BertTokenizerFast", "BertTokenizerFast")],
)
def test_tokenizer_class_is_one_that_transformers_4_knows(tmp_path, saved, expected):
    class Tokenizer:
        def save_pretrained(self, folder, **_):
            (Path(folder) / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": saved, "a": 1}))

    export_huggingface(MODEL, tmp_path, Tokenizer())
    assert json.loads((tmp_path / "tokenizer_config.json").read_text()) == {"tokenizer_class": expected, "a": 1}


def test_replaces_an_older_model_and_keeps_other_files(tmp_path):
    (tmp_path / "config.json").write_text("old")
    (tmp_path / "model-00001-of-00002.safetensors").write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    export_huggingface(MODEL, tmp_path)
    assert content(tmp_path) == {
        "config.json": "new config.json",
        "model.safetensors": "new model.safetensors",
        "notes.txt": "mine",
    }


def test_a_failed_export_leaves_the_older_model(tmp_path):
    export_huggingface(MODEL, tmp_path)
    before = content(tmp_path)
    with pytest.raises(OSError, match="disk full"):
        export_huggingface(Model("config.json", "half.safetensors", fails=True), tmp_path)
    assert content(tmp_path) == before
    assert {path.name for path in tmp_path.iterdir()} == set(before)


def test_an_export_interrupted_while_moving_does_not_look_like_a_model(tmp_path, monkeypatch):
    export_huggingface(MODEL, tmp_path)
    moved = []

    def replace(self, target):
        moved.append(self.name)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        export_huggingface(MODEL, tmp_path)
    assert moved == ["model.safetensors"]
    assert not (tmp_path / "config.json").exists()


def test_a_full_disk_is_an_error_of_the_system(tmp_path):
    """Libraries written in Rust have errors of their own for it."""

    class Full:
        def save_pretrained(self, folder, **_):
            raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    with pytest.raises(OSError, match="No space left on device") as caught:
        export_huggingface(Full(), tmp_path / "model")
    assert caught.value.errno == errno.ENOSPC
    assert list((tmp_path / "model").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_not_a_full_disk():
    said = "No such file or directory.* HINT: use a folder"
    with pytest.raises(CheckpointError, match=said), atomic_write(Path("/proc/x")):
        pass
