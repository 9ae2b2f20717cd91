# SPDX-License-Identifier: Apache-2.0
"""Two segments of each sequence, and preparing text in parallel."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_sagemaker.errors import CommandError
from lightning_sagemaker.recipes._common.data.cache import MANIFEST
from lightning_sagemaker.recipes._common.data.unigram import train_tokenizer
from lightning_sagemaker.recipes.albert_mlm import jobs, prepare
from lightning_sagemaker.recipes.albert_mlm.articles import TextSourceError
from lightning_sagemaker.recipes.albert_mlm.data import MLMDataModule
from lightning_sagemaker.recipes.albert_mlm.packing import Words, swap_segments, two_segments
from lightning_sagemaker.recipes.albert_mlm.prepare import Preparation
from lightning_sagemaker.recipes.albert_mlm.prepare_text import main
from lightning_sagemaker.recipes.albert_mlm.text import find_own_text, find_text
from lightning_sagemaker.recipes.albert_mlm.tokenizer import load_tokenizer

CLS, SEP, STOP = 2, 3, 9


@pytest.fixture
def words():
    special, ends = np.zeros(100, dtype=bool), np.zeros(100, dtype=bool)
    special[:5], ends[STOP] = True, True
    begins = np.arange(100) % 2 == 0  # odd tokens continue a word
    return Words(CLS, SEP, special, begins | special, ends)


def test_segments_are_divided_where_a_sentence_begins_next_to_the_middle(words):
    plain = np.full((4, 20), 11)
    plain[0, [4, 8, 12]] = STOP, STOP, STOP
    plain[0, [5, 9, 13]] = 10, 10, 10  # sentences begin at 5, 9 and 13
    plain[1, 12] = 10  # no sentence, but a word
    plain[2, 1], plain[2, 2] = STOP, 10  # a sentence outside the middle half
    rows, first = two_segments(plain, words)
    assert first.tolist() == [9, 12, 10, 10]
    assert rows.shape == (4, 23)
    for row, length, body in zip(rows.tolist(), first, plain.tolist(), strict=True):
        assert row == [CLS, *body[:length], SEP, *body[length:], SEP]


def test_swapping_changes_the_order_and_nothing_else(words):
    bodies = np.random.default_rng(0).integers(5, 100, (50, 30))
    rows, first = two_segments(bodies, words)
    swapped, second = swap_segments(rows, first)
    for row, other, a, b in zip(rows.tolist(), swapped.tolist(), first, second, strict=True):
        assert a + b == 30
        assert other == [CLS, *row[a + 2 : -1], SEP, *row[1 : a + 1], SEP]
    np.testing.assert_array_equal(swap_segments(swapped, second)[0], rows)


def test_words_and_sentences_of_a_trained_tokenizer():
    tokenizer = train_tokenizer(["One sentence. Another one! A third? 1.5 is a number."] * 20, 60, True)
    words = Words.of(tokenizer.backend_tokenizer, 2, 3, tokenizer.all_special_ids)
    tokens = [tokenizer.convert_ids_to_tokens(i) for i in range(len(tokenizer))]
    assert all(begins for token, begins in zip(tokens, words.begins, strict=True) if token.startswith("▁"))
    assert {token for token, ends in zip(tokens, words.ends_sentence, strict=True) if ends} >= {"."}
    assert not words.ends_sentence[words.special].any()


def test_half_of_the_sequences_are_swapped_and_types_tell_the_segments(text_file, tmp_path):
    data = MLMDataModule(
        str(text_file),
        cache_dir=str(tmp_path),
        vocab_size=300,
        sequence_length=32,
        global_batch_size=64,
        sentence_order=True,
        test_fraction=0,
    )
    data.prepare_data()
    data.setup("fit")
    shares = []
    for batch in data.train_dataloader():
        shares.append(batch["swapped"].float().mean().item())
        separators = (batch["input_ids"] == 3).cumsum(dim=1)
        # [CLS] first [SEP] | second [SEP]; articles' ends are packed with separators of their own.
        assert (batch["token_type_ids"].diff(dim=1) >= 0).all()
        assert (batch["token_type_ids"][:, 0] == 0).all()
        assert (separators.gather(1, batch["token_type_ids"].argmax(dim=1, keepdim=True)) >= 1).all()
    assert np.mean(shares) == pytest.approx(0.5, abs=0.1)


OPTIONS = ["--vocab-size", "300", "--sequence-length", "32", "--workers", "2", "--test-fraction", "0.1"]


def test_prepared_shards_are_those_that_training_makes_itself(text_file, tmp_path, capsys):
    assert main([str(text_file), str(tmp_path / "shards"), *OPTIONS]) == 0
    assert "prepared 120 articles" in capsys.readouterr().out
    options = {"vocab_size": 300, "sequence_length": 32, "global_batch_size": 8, "test_fraction": 0.1}
    options["cache_dir"] = str(tmp_path / "cache")
    batches = []
    for text in (tmp_path / "shards", text_file):
        data = MLMDataModule(str(text), **options)
        data.prepare_data()
        data.setup("fit")
        batches.append(list(data.train_dataloader()))
    for one, other in zip(*batches, strict=True):
        assert all((one[name] == other[name]).all() for name in one)
    assert main([str(text_file), str(tmp_path / "shards"), *OPTIONS]) == 0
    assert "found 120 articles" in capsys.readouterr().out


def test_an_interrupted_preparation_goes_on(text_file, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "_SHARD_CHARACTERS", (10_000, 10_000))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main([str(text_file), str(whole), *OPTIONS]) == 0
    made = []
    real = jobs.ShardJob.__call__

    def interrupted(job, documents):
        if job.number == 3 and len(made) < 4:
            raise KeyboardInterrupt
        made.append(job.number)
        return real(job, documents)

    monkeypatch.setattr(jobs.ShardJob, "__call__", interrupted)
    monkeypatch.setattr(prepare, "run_jobs", lambda job, chunks, _: serial(job, chunks))
    with pytest.raises(KeyboardInterrupt):
        main([str(text_file), str(broken), *OPTIONS])
    assert made == [0, 1, 2]
    assert not (broken / MANIFEST).exists()
    made.append(-1)
    assert main([str(text_file), str(broken), *OPTIONS]) == 0
    assert made[:5] == [0, 1, 2, -1, 3]  # what was finished is not made again
    assert json.loads((broken / MANIFEST).read_text()) == json.loads((whole / MANIFEST).read_text())
    assert not list(broken.glob(".*"))


def prepare_here(folder, source, **options):
    """As the command does, but in this process."""
    settings = {"vocab_size": 300, "sequence_length": 32, "test_fraction": 0.1}
    preparation = Preparation(find_text(str(source), {}), **{**settings, **options})
    return preparation.run_in(folder, 0, lambda _: None)[0]


@pytest.mark.parametrize("lost", ["shards", "tokenizer"])
def test_a_folder_that_half_exists_is_completed(text_file, tmp_path, monkeypatch, lost):
    monkeypatch.setattr(prepare, "_SHARD_CHARACTERS", (10_000, 10_000))
    whole, half = tmp_path / "whole", tmp_path / "half"
    prepare_here(whole, text_file)
    shutil.copytree(whole, half)
    if lost == "shards":
        (half / "train-00001.npy").unlink()
        cut = half / "train-00003.npy"
        cut.write_bytes(cut.read_bytes()[:-8])
        content = bytearray((half / "train-00004.npy").read_bytes())
        content[-1] ^= 1  # of the right size, but not what was written
        (half / "train-00004.npy").write_bytes(content)
    else:
        (half / "tokenizer" / "tokenizer.json").unlink()
    made = []
    real = jobs.ShardJob.__call__
    monkeypatch.setattr(jobs.ShardJob, "__call__", lambda job, text: made.append(job.number) or real(job, text))
    prepare_here(half, text_file)
    total = len(list(whole.glob("train-*.npy")))
    assert made == ([1, 3, 4] if lost == "shards" else list(range(total)))
    contents = [
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (whole, half)
    ]
    assert contents[0] == contents[1]


def test_validation_and_test_may_have_text_of_their_own(text_file, tmp_path):
    first, second = sorted(text_file.read_text().split())[:2]
    texts = {"train": text_file.read_text(), "val": f"{first} " * 500, "test": f"{second} " * 500}
    names = list(texts)
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
    files = [str(tmp_path / f"{name}.txt") for name in names]
    own = find_own_text({"validation": files[1], "test": [files[2]]}, {})
    shards = tmp_path / "shards"
    manifest = prepare_here(shards, files[0], **own)
    assert manifest["articles"] == 122
    tokenizer = load_tokenizer(str(shards / "tokenizer"))
    for split in names:
        rows = np.concatenate([np.load(path) for path in sorted(shards.glob(f"{split}-*.npy"))])
        assert manifest["counts"][split] == len(rows) > 5
        its_tokens = set(tokenizer(texts[split])["input_ids"])  # of one word, but in training
        assert set(rows.flatten().tolist()) <= its_tokens
        assert (len(its_tokens) > 100) == (split == "train")
    # The recipe makes the same of the same options; a job's channels are taken as other recipes take them.
    options = {"vocab_size": 300, "sequence_length": 32, "global_batch_size": 8, "test_fraction": 0.1}
    data = MLMDataModule(files[0], validation=files[1], test=[files[2]], cache_dir=str(tmp_path / "cache"), **options)
    data.prepare_data()
    data.setup("fit")
    assert data.manifest["files"] == manifest["files"]
    assert find_own_text({"validation": None, "test": None}, {"test": Path(files[2])}) == {"test": own["test"]}
    with pytest.raises(TextSourceError, match="other text or settings"):
        prepare_here(shards, files[0])


def test_a_text_too_short_is_said_by_the_option_before_any_shard(text_file, tmp_path, capsys, monkeypatch):
    (tmp_path / "few.txt").write_text("only some words")
    few, shards = tmp_path / "few.txt", tmp_path / "shards"
    own = find_own_text({"validation": str(few), "test": None}, {})
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "run_jobs", None)  # not reached
        for source, options, said in (
            (text_file, own, r"data.validation \(.*few.txt\) has 1 articles, too short .*data.sequence_length=32"),
            (
                text_file,
                {"val_fraction": 1e-9},
                r"data.val_fraction=1e-09 of .* is 0 articles.*HINT: .*raise data.val_fr",
            ),
            (few, {}, r"data.text \(.*few.txt\) has . articles for training, too short"),
        ):
            with pytest.raises(TextSourceError, match=said):
                prepare_here(shards, source, **options)
            assert not list(shards.glob("*.npy"))
        with pytest.raises(CommandError, match=r"^--val-fraction=1e-09 of .*--sequence-length=32"):
            main([str(text_file), str(shards), *OPTIONS, "--val-fraction", "1e-9"])
    assert prepare_here(shards, text_file) == prepare_here(tmp_path / "new", text_file)  # what was refused is in no way
    with pytest.raises(MisconfigurationException, match=r"data\.validation was set.*HINT"):
        MLMDataModule(str(shards), validation=str(few))


def serial(job, chunks):
    for number, (split, documents) in enumerate(chunks):
        one = replace(job, number=number, split=split)
        yield one.finished(documents) or one(documents)


def test_damage_is_found_and_other_settings_are_refused(text_file, tmp_path, capsys):
    shards = tmp_path / "shards"
    assert main([str(text_file), str(shards), *OPTIONS]) == 0
    assert main([str(text_file), str(shards), "--verify"]) == 0
    with pytest.raises(CommandError, match="other text or settings"):
        main([str(text_file), str(shards), *OPTIONS, "--sequence-length", "64"])
    path = next(shards.glob("train-*.npy"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert main([str(text_file), str(shards), "--verify"]) == 1
    assert f"{path.name} in" in capsys.readouterr().err


def test_shards_of_another_length_are_refused(text_file, tmp_path):
    assert main([str(text_file), str(tmp_path / "shards"), *OPTIONS]) == 0
    data = MLMDataModule(str(tmp_path / "shards"), sequence_length=64)
    with pytest.raises(MisconfigurationException, match=r"sequence_length=64.*made with 32.*HINT"):
        data.setup("fit")


def test_workers_need_neither_torch_nor_transformers():
    module = "lightning_sagemaker.recipes.albert_mlm.jobs"
    code = f"import sys, {module}; print({{'torch', 'transformers'}} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "set()"
