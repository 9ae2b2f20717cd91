# SPDX-License-Identifier: Apache-2.0
import json
import pwd
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lightning_sagemaker import SageMakerJob
from lightning_sagemaker.errors import CommandError
from lightning_sagemaker.recipes._common.data.cache import MANIFEST, build_once, default_cache
from lightning_sagemaker.recipes._common.data.tables import DataError
from lightning_sagemaker.recipes._common.data.unigram import train_tokenizer
from lightning_sagemaker.recipes.albert_mlm import prepare_text
from lightning_sagemaker.recipes.albert_mlm.articles import TextSourceError
from lightning_sagemaker.recipes.albert_mlm.builtin_text import builtin_documents
from lightning_sagemaker.recipes.albert_mlm.data import MLMDataModule
from lightning_sagemaker.recipes.albert_mlm.packing import Packer
from lightning_sagemaker.recipes.albert_mlm.shards import Shards
from lightning_sagemaker.recipes.albert_mlm.text import find_text


def data_module(text_file, cache, **changes):
    options = {"vocab_size": 300, "sequence_length": 32, "global_batch_size": 8, "test_fraction": 0.1}
    return MLMDataModule(text=str(text_file), cache_dir=str(cache), **{**options, **changes})


def test_batches_have_the_stated_shapes(text_file, tmp_path):
    data = data_module(text_file, tmp_path)
    data.prepare_data()
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch["input_ids"].shape == (8, 32)
    assert batch["positions"].shape == batch["labels"].shape == (8, round(0.15 * 30))
    assert (batch["input_ids"][:, 0] == 2).all()
    assert (batch["input_ids"][:, -1] == 3).all()
    assert all(len(list(loader)) for loader in (data.val_dataloader(), data.test_dataloader()))


def test_splits_hold_different_articles(text_file, tmp_path):
    data = data_module(text_file, tmp_path, val_fraction=0.2)
    data.prepare_data()
    rows = {name[:3]: {tuple(row) for row in np.load(data.folder / name)} for name in read(data)["files"]}
    assert not rows["tra"] & rows["val"]
    assert not rows["tra"] & rows["tes"]


def read(data):
    return json.loads((data.folder / MANIFEST).read_text())


def test_cache_is_reused_and_changes_with_settings_and_text(text_file, tmp_path):
    data = data_module(text_file, tmp_path)
    data.prepare_data()
    made = (data.folder / MANIFEST).stat().st_mtime_ns
    data_module(text_file, tmp_path).prepare_data()
    assert (data.folder / MANIFEST).stat().st_mtime_ns == made
    assert data_module(text_file, tmp_path, sequence_length=64).folder != data.folder
    changed = tmp_path / "articles.txt"
    changed.write_text(text_file.read_text() + "\nmore words")
    assert data_module(changed, tmp_path).folder != data.folder


@pytest.mark.parametrize("damage", ["truncated", "missing", "no manifest", "bad manifest"])
def test_damaged_cache_is_made_again(text_file, tmp_path, damage):
    data = data_module(text_file, tmp_path)
    data.prepare_data()
    before = read(data)
    shard = data.folder / "train-00000.npy"
    if damage == "truncated":
        shard.write_bytes(shard.read_bytes()[:-10])
    elif damage == "missing":
        shard.unlink()
    elif damage == "no manifest":
        (data.folder / MANIFEST).unlink()
    else:
        (data.folder / MANIFEST).write_text('{"key"')
    data.prepare_data()
    assert read(data) == before
    assert shard.stat().st_size == before["files"][shard.name]["bytes"]
    assert [path.name for path in tmp_path.iterdir()] == [data.folder.name]


def test_interrupted_preparation_leaves_nothing(tmp_path):
    def build(folder):
        (folder / "part").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(tmp_path / "cache", {}, build)
    assert not list(tmp_path.iterdir())


def test_hosts_with_a_common_disk_may_prepare_at_once(tmp_path):
    def build(folder):
        np.save(folder / "train-00000.npy", np.zeros((2, 4), np.uint16))
        size = (folder / "train-00000.npy").stat().st_size
        return {"files": {"train-00000.npy": {"rows": 2, "bytes": size, "blake2b": ""}}}

    with ThreadPoolExecutor(8) as pool:
        results = [pool.submit(build_once, tmp_path / "cache", {"a": 1}, build) for _ in range(8)]
        manifests = [future.result(timeout=60) for future in results]
    assert [made for _, made in manifests].count(True) == 1
    assert all(manifest == manifests[0][0] for manifest, _ in manifests)
    assert len(list(tmp_path.iterdir())) == 1


def test_rows_across_shards(tmp_path):
    rows = np.arange(40).reshape(10, 4)
    for number, part in enumerate(np.split(rows, [3, 4])):
        np.save(tmp_path / f"train-{number:05d}.npy", part.astype(np.uint16))
    shards = Shards(tmp_path, {path.name: {} for path in tmp_path.iterdir()})
    indices = np.array([9, 0, 3, 2, 4, 9])
    assert len(shards) == 10
    np.testing.assert_array_equal(shards.rows(indices), rows[indices])


def test_packing_fills_each_sequence_and_crosses_articles_only_with_their_ends():
    packer = Packer(body=20, sep=3)
    for article in (range(100, 150), range(200, 205), range(300, 315), range(400, 420)):
        packer.add(list(article))
    assert packer.sequences().tolist() == [
        list(range(100, 120)),
        list(range(120, 140)),
        [*range(140, 150), 3, *range(300, 309)],
        list(range(400, 420)),
    ]
    assert packer.sequences().shape == (0, 20)


def test_tokenizer_is_the_same_each_time_and_lowercases(text_file):
    documents = text_file.read_text().split("\n")
    first, second = (train_tokenizer(documents, 300, True).backend_tokenizer.to_str() for _ in range(2))
    assert first == second
    tokenizer = train_tokenizer(documents, 300, True)
    assert tokenizer("ABC def")["input_ids"] == tokenizer("abc def")["input_ids"]
    assert tokenizer("abc")["input_ids"][0] == tokenizer.cls_token_id


def test_builtin_text_is_prose_without_duplicates():
    documents = list(builtin_documents())
    assert sum(map(len, documents)) > 1_000_000
    assert len(set(documents)) == len(documents)
    assert any("regular expression" in document for document in documents)
    assert not any("\n" in document or ">>>" in document[:3] for document in documents)


def test_builtin_text_does_not_run_what_it_reads(tmp_path):
    prose = "A sentence about nothing in particular that is long enough to be counted as prose here."
    (tmp_path / "a.py").write_text(f'"""{prose}"""\nraise SystemExit')
    (tmp_path / "b.py").write_text(f'def f():\n    """{prose}"""\n')
    (tmp_path / "c.py").write_text("not python at all")
    assert list(builtin_documents(tmp_path)) == [prose]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "all empty"),
        (b"\xff text", "not UTF-8"),
        (b"\xff\xfe\x00 tex", "not valid UTF-16"),
        (b"short", "too short for a sequence of data.sequence_length="),
    ],
)
def test_unusable_files_are_refused(tmp_path, content, message):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(TextSourceError, match=message):
        data_module(path, tmp_path / "cache").prepare_data()
    assert not list((tmp_path / "cache").glob("*"))


def test_missing_path_is_refused():
    with pytest.raises(TextSourceError, match="no such file"):
        find_text("./absent.txt", {})


def test_auto_takes_the_channel_of_the_job(text_file):
    assert find_text("auto", {"training": text_file.parent}).files == (text_file,)
    assert find_text("auto", {"other": text_file.parent}).files == ()


@pytest.mark.parametrize("option", [{"mask_probability": 0.6}, {"sequence_length": 8}, {"val_fraction": -0.1}])
def test_numbers_out_of_range_are_refused(text_file, tmp_path, option):
    with pytest.raises(MisconfigurationException, match=rf"data\.{next(iter(option))}=.*HINT"):
        data_module(text_file, tmp_path, **option)


def test_a_global_batch_larger_than_the_text_is_refused(text_file, tmp_path):
    data = data_module(text_file, tmp_path, global_batch_size=100_000)
    data.prepare_data()
    data.setup("fit")
    with pytest.raises(MisconfigurationException, match="100000"):
        data.train_dataloader()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--sequence-length", "2"),
        ("--vocab-size", "-1"),
        ("--vocab-size", "5"),
        ("--max-documents", "0"),
        ("--workers", "-1"),
    ],
)
def test_values_without_a_meaning_are_refused_before_anything_is_written(option, value, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        prepare_text.main(["builtin", str(tmp_path / "shards"), option, value])
    assert f"argument {option}: {value!r} was given. HINT: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_vocabulary_smaller_than_the_alphabet_is_one_sentence():
    with pytest.raises(ValueError, match=r"data\.vocab_size=8 was set.* HINT: set a larger one"):
        train_tokenizer(["the quick brown fox jumps over the lazy dog"] * 20, 8, True)


@pytest.mark.parametrize("name", ["tokenizer/vocab.txt", "tokenizer/tokenizer_config.json", "a/corpus.txt"])
def test_a_folder_with_other_files_is_not_prepared_into(name, tmp_path):
    """Its tokenizer was deleted or, if it was complete, silently taken; all other files became part of the data."""
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text("{}")
    (tmp_path / ".hidden").touch()
    with pytest.raises(CommandError, match=f"contains {name}, which is no prepared text. HINT: give a new folder"):
        prepare_text.main(["builtin", str(tmp_path), "--workers", "0"])
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == [tmp_path / ".hidden", tmp_path / name]


def test_a_cache_that_cannot_be_written_is_one_sentence(text_file, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot be prepared in .*file/cache: .*HINT: set data\.cache_dir"):
        data_module(text_file, tmp_path / "file" / "cache").prepare_data()


def test_a_user_without_a_home_has_a_cache(monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # as in containers that run under any user id
    assert default_cache(SageMakerJob.local(), "x").is_relative_to(tempfile.gettempdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["", "x"], "INPUT or OUTPUT is an empty text"),  # all text of the current folder was prepared
        (["builtin", ""], "INPUT or OUTPUT is an empty text"),
        (["builtin", "x", "--val-fraction", "nan"], "--val-fraction=nan was set. HINT: it must be between 0 and 0.5"),
        (["builtin", "x", "--tokenizer", "/nowhere", "--workers", "0"], "no model or tokenizer can be loaded"),
    ],
)
def test_what_cannot_be_prepared_is_one_sentence(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError, match=said):
        prepare_text.main(words)
