# SPDX-License-Identifier: Apache-2.0
"""Checkpoints written beside the training against those written at once, and after failures and kills."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
import transformers

from lightning_sagemaker import cli
from lightning_sagemaker._compat.dcp import read_full
from lightning_sagemaker.checkpoint.find import find_checkpoint
from tests.conftest import fork_ranks, read_ranks

sys.path.insert(0, str(Path(__file__).parent))
from lightning_model import Model, samples
from models import SIZES

WORKER = Path(__file__).with_name("background_worker.py")
KILLED = Path(__file__).with_name("killed_worker.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("background")
    fork_ranks(WORKER, place, processes=2)
    return place


@pytest.fixture(scope="module")
def ranks(folder):
    return read_ranks(folder)


def flat(value, path=()):
    if isinstance(value, dict):
        return {key: leaf for name, entry in value.items() for key, leaf in flat(entry, (*path, name)).items()}
    if isinstance(value, list):
        return {key: leaf for name, entry in enumerate(value) for key, leaf in flat(entry, (*path, name)).items()}
    return {path: value.tolist() if isinstance(value, torch.Tensor) else value}


@pytest.mark.parametrize("step", [2, 8])
def test_it_holds_what_one_written_at_once_holds(folder, ranks, step):
    """Although the weights went on changing while it was written."""
    at_once, beside = (folder / name / f"step={step}.ckpt" for name in ("at once", "beside"))
    assert flat(read_full(beside)) == flat(read_full(at_once))
    rest = [torch.load(path / "meta.pt", weights_only=True) for path in (beside, at_once)]
    assert rest[0].keys() == rest[1].keys()
    assert rest[0]["lr_schedulers"] == rest[1]["lr_schedulers"]
    assert sorted(path.name for path in beside.iterdir()) == sorted(path.name for path in at_once.iterdir())


def test_training_goes_on_and_is_as_it_was(ranks):
    for rank in ranks:
        assert rank["beside"]["overlap"] >= 3
        assert rank["beside"]["losses"] == rank["at once"]["losses"]
        assert rank["beside"]["sums"] == rank["at once"]["sums"]


def test_a_save_asks_no_other_process_and_plans_once(ranks):
    for rank in ranks:
        assert rank["beside"]["asked"] == 0
        assert rank["beside"]["plans"] == 1


def test_an_interrupted_run_goes_on_to_the_same_weights(ranks):
    for rank in ranks:
        stopped = rank["interrupted"]["step"]
        assert rank["interrupted"]["code"] == 143
        assert 3 <= stopped < 8
        assert rank["rest"]["losses"] == rank["at once"]["losses"][stopped:]
        assert rank["rest"]["sums"] == rank["at once"]["sums"]


def test_another_number_of_processes_goes_on(folder, ranks, tmp_path):
    """The mean over two processes' losses is the loss of one with their batches."""
    fork_ranks(WORKER, tmp_path, processes=1, OTHER=str(folder / "interrupted"))
    losses = [rank["at once"]["losses"][rank["interrupted"]["step"] :] for rank in ranks]
    expected = [sum(of_step) / 2 for of_step in zip(*losses, strict=True)]
    assert read_ranks(tmp_path)[0]["rest"]["losses"] == pytest.approx(expected, abs=1e-5)


def test_a_part_that_fails_is_an_error_on_all_ranks_and_no_checkpoint(ranks):
    for rank in ranks:
        assert "rank 1: OSError: [Errno 28] No space left on device" in rank["failure"]
        assert rank["left by failure"] == []


def test_what_it_replaces_stays_until_it_is_whole(ranks):
    *seen, last = ranks[0]["kept"]
    first = next(index for index, names in enumerate(seen) if names)
    assert all(seen[first:])
    assert last == ["step=8.ckpt"]


def test_one_file_is_refused(ranks):
    assert "save_distributed_checkpoint=False" in ranks[0]["one file"]
    assert "HINT" in ranks[0]["one file"]


def killed(folder: Path, times: int) -> None:
    fork_ranks(KILLED, folder, str(times), processes=0)
    (found,) = read_ranks(folder)
    assert len(found) == times
    for kill in found:
        assert kill["whole"], kill
        assert kill["step"] >= kill["begun"] - 2, kill  # nothing that was whole is lost while it is replaced
    assert any(kill["step"] for kill in found)


def test_after_a_kill_there_is_a_whole_checkpoint_or_none(tmp_path):
    killed(tmp_path, 8)


@pytest.mark.slow
def test_after_many_kills_there_is_a_whole_checkpoint_or_none(tmp_path):
    killed(tmp_path, 200)


def test_one_that_is_being_replaced_is_found(folder, ranks, tmp_path):
    """A kill between the two renames leaves the old one under its other name."""
    old = tmp_path / ".last.old.ckpt"
    shutil.copytree(folder / "beside" / "step=8.ckpt", old)
    found = find_checkpoint(tmp_path)
    assert found is not None
    assert (found.path, found.step) == (old, 8)


def test_converted_to_one_file_it_goes_on_in_a_stock_trainer(folder, ranks, tmp_path):
    """With the optimizer's states by number, as one process has them; losses are the means over two processes'."""
    from lightning.pytorch import Trainer, seed_everything
    from lightning_model import Losses
    from torch.utils.data import DataLoader, Subset

    parts, whole = folder / "beside" / "step=4.ckpt", tmp_path / "whole.ckpt"
    assert cli.main(["convert", str(parts), str(whole)]) == 0
    stored = torch.load(whole, weights_only=True)
    assert flat(stored["state_dict"]) == flat(read_full(parts)["state_dict"])
    seed_everything(0, verbose=False)
    losses, data = Losses(), samples("bert")
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = Trainer(accelerator="cpu", devices=1, max_steps=8, callbacks=[losses], **quiet)
    rest = DataLoader(Subset(data, range(32, 64)), 8)  # stock Lightning begins a loader anew
    trainer.fit(Model("bert"), rest, ckpt_path=whole)
    expected = [sum(of_step) / 2 for of_step in zip(*(rank["at once"]["losses"][4:] for rank in ranks), strict=True)]
    assert losses.values == pytest.approx(expected, abs=1e-5)


def test_converted_to_a_hugging_face_folder_it_is_loaded(folder, tmp_path):
    parts, like, target = folder / "beside" / "step=8.ckpt", tmp_path / "like", tmp_path / "model"
    config = transformers.BertConfig(**SIZES, architectures=["BertForSequenceClassification"])
    config.save_pretrained(like)
    assert cli.main(["convert", str(parts), str(target), "--like", str(like)]) == 0
    model = transformers.AutoModelForSequenceClassification.from_pretrained(target)
    stored = read_full(parts)["state_dict"]
    assert flat({f"net.{name}": value for name, value in model.state_dict().items()}) == {
        path: value for path, value in flat(stored).items() if path[0].startswith("net.")
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.ckpt", "x"], "is not a Lightning checkpoint"),
        (["PARTS", "FOLDER"], "is a directory"),
        (["PARTS", "x", "--like", "LIKE"], "does not name a transformers architecture"),
        (["PARTS", "x", "--like", "LIKE", "--architecture", "BertForPreTraining"], "lacks "),
        (["PARTS", "x", "--like", "LARGE", "--architecture", "BertForSequenceClassification"], "of shape"),
    ],
)
def test_what_cannot_be_converted_says_why(folder, tmp_path, capsys, arguments, words):
    transformers.BertConfig(**SIZES).save_pretrained(tmp_path / "like")
    transformers.BertConfig(**{**SIZES, "hidden_size": 64}).save_pretrained(tmp_path / "large")
    places = {"PARTS": folder / "beside" / "step=8.ckpt", "FOLDER": tmp_path}
    places |= {"LIKE": tmp_path / "like", "LARGE": tmp_path / "large", "x": tmp_path / "x"}
    assert cli.main(["convert", *(str(places.get(name, name)) for name in arguments)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "HINT" in said
    assert not (tmp_path / "x").exists()
