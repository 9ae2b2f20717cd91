# SPDX-License-Identifier: Apache-2.0
"""Prepared text of which a part is damaged: training ends by default, or goes on with other sequences and says so."""

import numpy as np
import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_sagemaker.data.damage import replacements
from lightning_sagemaker.recipes._common.data import checked
from lightning_sagemaker.recipes._common.data.checked import DamagedFileError
from lightning_sagemaker.recipes.albert_mlm import prepare
from lightning_sagemaker.recipes.albert_mlm.data import MLMDataModule
from lightning_sagemaker.recipes.albert_mlm.prepare_text import main

OPTIONS = {"sequence_length": 32, "global_batch_size": 8, "num_workers": 0}


def prepared(text_file, folder, monkeypatch, *options):
    monkeypatch.setattr(prepare, "_SHARD_CHARACTERS", (10_000, 10_000))
    options = ["--vocab-size", "300", "--sequence-length", "32", "--test-fraction", "0.1", "--workers", "1", *options]
    assert main([str(text_file), str(folder), *options]) == 0
    return sorted(path for path in folder.glob("train-?????.npy"))


def open_data(folder, **options):
    data = MLMDataModule(str(folder), **OPTIONS | options)
    data.prepare_data()
    data.setup("fit")
    return data


def damage(files):
    """One file of each kind of damage: missing, cut short, with one bit that is not what it was."""
    files[0].unlink()
    files[2].write_bytes(files[2].read_bytes()[:-40])
    content = bytearray(files[3].read_bytes())
    content[-1] ^= 1
    files[3].write_bytes(content)


def test_sequences_of_intact_shards_take_the_places(text_file, tmp_path, monkeypatch, caplog):
    files = prepared(text_file, tmp_path, monkeypatch, "--sentence-order")
    assert len(files) > 4
    whole = open_data(tmp_path, sentence_order=True).train_dataloader().dataset.shards
    everything = np.arange(len(whole))
    rows, first = whole.rows(everything), whole.first_segments(everything)
    lengths = [len(np.load(file)) for file in files]
    lost = np.isin(np.repeat(np.arange(len(files)), lengths), [0, 2, 3])
    damage(files)

    with pytest.raises(
        MisconfigurationException, match=rf"{files[0].name} is missing.*{files[2].name} has .* bytes, expected"
    ):
        open_data(tmp_path, sentence_order=True)

    loader = open_data(tmp_path, sentence_order=True, on_damage="skip").train_dataloader()
    shards = loader.dataset.shards
    assert len(shards) == len(whole)
    found, beside = shards.rows(everything), shards.first_segments(everything)
    np.testing.assert_array_equal(found[~lost], rows[~lost])
    np.testing.assert_array_equal(beside[~lost], first[~lost])
    intact = {(*row, at) for row, at in zip(rows[~lost].tolist(), first[~lost].tolist(), strict=True)}
    assert {(*row, at) for row, at in zip(found[lost].tolist(), beside[lost].tolist(), strict=True)} <= intact
    assert sum(len(batch["index"]) for batch in loader) == len(loader) * 8
    said = [record.message for record in caplog.records if "training on other data instead" in record.message]
    assert [message.split()[0] for message in said] == [files[place].name for place in (0, 2, 3)]
    assert said[-1].endswith(f"(3 of {2 * len(files)} files so far)")


def test_what_a_loader_worker_found_damaged_the_others_know(text_file, tmp_path, monkeypatch):
    damage(prepared(text_file, tmp_path, monkeypatch))
    loader = open_data(tmp_path, on_damage="skip", num_workers=2).train_dataloader()
    files = loader.dataset.shards._files
    assert (files._checked == checked._DAMAGED).sum() == 1  # the first, which was needed when they were opened
    assert sum(len(batch["index"]) for batch in loader) == len(loader) * 8
    assert (files._checked == checked._DAMAGED).sum() == 3


def test_a_segments_file_that_is_damaged_takes_its_shard_with_it(text_file, tmp_path, monkeypatch):
    files = prepared(text_file, tmp_path, monkeypatch, "--sentence-order")
    beside = tmp_path / files[1].name.replace(".npy", "-segments.npy")
    beside.unlink()
    shards = open_data(tmp_path, sentence_order=True, on_damage="skip").train_dataloader().dataset.shards
    place = np.array([len(np.load(files[0]))])
    rows = np.concatenate([np.load(file) for file in files if file != files[1]])
    assert shards.rows(place).tolist()[0] in rows.tolist()
    assert 0 < shards.first_segments(place)[0] < 32


def test_without_any_intact_shard_it_ends(text_file, tmp_path, monkeypatch):
    for file in prepared(text_file, tmp_path, monkeypatch):
        file.unlink()
    with pytest.raises(DamagedFileError, match="all .* shards are damaged. HINT"):
        open_data(tmp_path, on_damage="skip")


def test_other_policies_are_refused():
    with pytest.raises(
        MisconfigurationException, match=r"data\.on_damage='ignore' was set\. HINT: choose fail or skip"
    ):
        MLMDataModule("builtin", on_damage="ignore")


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 1000])
def test_every_place_comes_once_and_neighbors_last(count):
    for place in {0, count // 2, count - 1}:
        order = list(replacements(place, count))
        assert order[0] == place
        assert sorted(order) == list(range(count))
