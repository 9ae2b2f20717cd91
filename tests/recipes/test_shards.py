# SPDX-License-Identifier: Apache-2.0
"""Prepared data that has changed on disk is refused when it is read, by name; older data without checksums is still used."""

import argparse
import json
import logging
import os
import shutil

import numpy as np
import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_sagemaker.commands import prepare as prepare_command
from lightning_sagemaker.errors import CommandError
from lightning_sagemaker.recipes._common.cli.recipe_cli import RecipeCLI
from lightning_sagemaker.recipes._common.data import checked
from lightning_sagemaker.recipes._common.data.cache import MANIFEST
from lightning_sagemaker.recipes._common.data.checked import CheckedFiles, DamagedFileError
from lightning_sagemaker.recipes.albert_mlm.data import MLMDataModule
from lightning_sagemaker.recipes.albert_mlm.prepare_text import main
from lightning_sagemaker.recipes.albert_mlm.recipe import RECIPE
from lightning_sagemaker.recipes.bert_qa.data import QuestionAnsweringDataModule
from lightning_sagemaker.recipes.sequence_classification.data import ClassificationDataModule

SHARD = "train-00000.npy"
KINDS = ("albert-mlm", "bert-qa", "sequence-classification")


def flip(path, place=-1):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-10])


def remove_checksums(folder, *kinds):
    manifest = json.loads((folder / MANIFEST).read_text())
    for entry in [*manifest["files"].values(), *manifest["others"].values()]:
        for kind in kinds:
            del entry[kind]
    (folder / MANIFEST).write_text(json.dumps(manifest))


def verify(folder, capsys):
    parser = argparse.ArgumentParser()
    prepare_command.add_arguments(parser)
    code = prepare_command.main(parser.parse_args(["--verify", str(folder)]))
    return code, capsys.readouterr()


@pytest.fixture(scope="module")
def made(text_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared") / "shards"
    options = ["--vocab-size", "300", "--sequence-length", "32", "--sentence-order", "--test-fraction", "0.1"]
    assert main([str(text_file), str(folder), *options, "--workers", "1"]) == 0
    return folder


@pytest.fixture
def shards(made, tmp_path):
    return shutil.copytree(made, tmp_path / "shards")


def albert(folder, **options):
    arguments = {"sequence_length": 32, "sentence_order": True, "global_batch_size": 8, "num_workers": 0}
    data = MLMDataModule(str(folder), **arguments | options)
    data.prepare_data()
    data.setup("fit")
    return data


def of_kind(kind, cache, made):
    """A data module with its cache in a folder of ``cache``, not set up; and an array that batches are made of."""
    small = {"vocab_size": 300, "global_batch_size": 8, "num_workers": 0, "cache_dir": str(cache)}
    if kind == "albert-mlm":
        folder = cache / "shards"
        shutil.copytree(made, folder)
        return MLMDataModule(str(folder), sequence_length=32, sentence_order=True, **small), SHARD
    if kind == "bert-qa":
        table, data_module, name = questions(cache), QuestionAnsweringDataModule, "train-context-tokens-values.npy"
    else:
        table, data_module, name = texts(cache), ClassificationDataModule, "train-values.npy"
    return data_module(train=str(table), **small), name


def texts(folder):
    path = folder / "train.csv"
    path.write_text("text,label\n" + "\n".join(f"word{i} is {'red' if i % 2 else 'blue'},{i % 2}" for i in range(60)))
    return path


def questions(folder):
    rows = [
        {
            "id": str(i),
            "context": f"the town number {i} is old",
            "question": "which number is it ?",
            "answers": {"text": [str(i)], "answer_start": [16]},
        }
        for i in range(40)
    ]
    path = folder / "train.json"
    path.write_text(json.dumps(rows))
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_refused_when_its_file_is_read(kind, made, tmp_path, capsys):
    data, name = of_kind(kind, tmp_path, made)
    data.prepare_data()
    assert verify(data.folder, capsys)[0] == 0
    flip(data.folder / name)
    data.setup("fit")  # reads none of it
    with pytest.raises(
        DamagedFileError, match=rf"^{name} was written with crc32 \w+, but now has \w+, in .*HINT"
    ) as caught:
        list(data.train_dataloader())
    assert f"prepare --verify {data.folder}" in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_changed_is_listed_and_nothing_is_written(kind, made, tmp_path, capsys):
    data, name = of_kind(kind, tmp_path, made)
    data.prepare_data()
    names = sorted(json.loads((data.folder / MANIFEST).read_text())["files"])
    others = [other for other in names if other != name]
    flip(data.folder / name)
    cut(data.folder / others[0])
    (data.folder / others[1]).unlink()
    before = {path: path.stat().st_mtime_ns for path in data.folder.rglob("*")}
    for folder in (data.folder, data.folder.parent):
        code, said = verify(folder, capsys)
        assert code == 1
        wrong = [line for line in said.out.splitlines() if line.startswith("WRONG")]
        assert len(wrong) == 3
        assert f"{name} was written with crc32" in said.out
        assert f"{others[0]} has " in said.out
        assert f"{others[1]} is missing" in said.out
        assert "right   tokenizer/tokenizer.json" in said.out
        assert all(part in said.err for part in (name, others[0], others[1], "HINT"))
    assert {path: path.stat().st_mtime_ns for path in data.folder.rglob("*")} == before


def test_the_recipes_own_verify_is_the_same(shards, capsys):
    assert main(["builtin", str(shards), "--verify"]) == 0
    assert f"right   {SHARD}" in capsys.readouterr().out
    flip(shards / SHARD)
    assert main(["builtin", str(shards), "--verify"]) == 1
    with pytest.raises(CommandError, match=rf"holds no {MANIFEST}\. HINT"):
        main(["builtin", str(shards / "absent"), "--verify"])


@pytest.mark.parametrize("damage", [cut, os.unlink])
def test_cut_and_missing_shards_are_named_when_the_folder_is_opened(shards, damage):
    damage(shards / SHARD)
    damage(shards / SHARD.replace("train", "val"))
    with pytest.raises(MisconfigurationException, match=rf"there {SHARD} (is missing|has \d+ bytes).*; val-.*HINT"):
        albert(shards)


@pytest.mark.parametrize("damage", [cut, os.unlink])
def test_cut_and_missing_files_of_a_runs_own_cache_are_named_and_made_again(damage, tmp_path, made, caplog):
    data, name = of_kind("sequence-classification", tmp_path, made)
    data.prepare_data()
    damage(data.folder / name)
    with pytest.raises(RuntimeError, match=f"holds no complete cache.*{name}.*HINT"):
        data.setup("fit")
    data.prepare_data()
    assert f"Rebuilding {data.folder}: {name}" in caplog.text
    data.setup("fit")


@pytest.mark.parametrize("place", [0, 9, 60])  # of numpy's header
def test_a_flipped_bit_in_a_header_is_no_error_of_numpys(shards, place):
    flip(shards / SHARD, place)
    with pytest.raises(DamagedFileError, match=f"^{SHARD}.*HINT"):
        list(albert(shards).train_dataloader())


@pytest.mark.parametrize("name", ["tokenizer/tokenizer.json", "train-00000-segments.npy"])
def test_what_is_read_as_a_whole_is_checked_too(shards, name):
    flip(shards / name, -3)
    with pytest.raises(DamagedFileError, match=f"^{name}"):
        albert(shards).load_tokenizer()


def test_the_error_of_a_loader_worker_is_that_sentence(shards):
    flip(shards / SHARD)
    data = albert(shards, num_workers=2)
    with pytest.raises(DamagedFileError) as caught:
        list(data.train_dataloader())
    assert str(caught.value).startswith(f"{SHARD} was written with crc32")
    assert "Traceback" not in str(caught.value)


def test_a_run_ends_with_it(shards, tmp_path):
    flip(shards / SHARD)
    options = ["--config", "tiny.yaml", "--text", shards, "--data.sentence_order", "true", "--sequence_length", 32]
    options += ["--global_batch_size", 8, "--max_steps", 400, "--run_dir", tmp_path / "run", "--strategy", "auto"]
    options += ["--num_workers", 1]
    with pytest.raises(DamagedFileError, match=f"^{SHARD} was written"):
        RecipeCLI(RECIPE, [str(option) for option in options])


def test_older_shards_with_the_slow_checksum_only_are_checked(shards):
    remove_checksums(shards, "crc32")
    list(albert(shards).train_dataloader())
    flip(shards / SHARD)
    with pytest.raises(DamagedFileError, match=f"^{SHARD} was written with blake2b"):
        list(albert(shards).train_dataloader())


@pytest.mark.parametrize("kind", KINDS)
def test_older_caches_without_checksums_are_used_and_one_line_says_so(kind, made, tmp_path, caplog, capsys):
    data, name = of_kind(kind, tmp_path, made)
    data.prepare_data()
    remove_checksums(data.folder, "crc32", "blake2b")
    flip(data.folder / name)
    caplog.set_level(logging.INFO)
    data.setup("fit")
    next(iter(data.train_dataloader()))
    lines = [record.message for record in caplog.records if "without checksums" in record.message]
    assert len(lines) == 1
    assert str(data.folder) in lines[0]
    code, said = verify(data.folder, capsys)
    assert code == 0
    assert f"unknown {name}" in said.out


def test_a_manifest_without_the_tokenizer_is_used(shards):
    manifest = json.loads((shards / MANIFEST).read_text())
    del manifest["others"]
    (shards / MANIFEST).write_text(json.dumps(manifest))
    albert(shards).load_tokenizer()


def test_each_file_is_read_once_for_it_by_all_workers_together(tmp_path, monkeypatch):
    names = [f"{number}.npy" for number in range(200)]
    for name in names:
        np.save(tmp_path / name, np.zeros(4))
    log = tmp_path / "log"

    def compare(folder, name, entry):
        with log.open("a") as file:
            file.write(f"{name}\n")

    monkeypatch.setattr(checked, "find_fault", compare)
    files = CheckedFiles(tmp_path, {name: {} for name in names})
    assert not log.exists()
    files.check(names[:100])
    for _ in range(2):
        child = os.fork()
        if not child:
            files.check(names)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    files.check(names)
    assert sorted(log.read_text().split()) == sorted(names)


def test_opening_reads_no_shard(shards, monkeypatch):
    read = []
    monkeypatch.setattr(checked, "find_fault", lambda folder, name, entry: read.append(name))
    data = albert(shards)
    assert not [name for name in read if name.startswith("train") and "segments" not in name]
    batches = iter(data.train_dataloader())
    next(batches)
    assert SHARD in read
    again = len(read)
    list(batches)
    assert len(read) == again
