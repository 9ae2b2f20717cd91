# SPDX-License-Identifier: Apache-2.0
"""Kinds of files that are known by their content: Arrow, JSON by other names, and what is neither a table nor text."""

import json

import datasets
import pandas
import pytest

from lightning_sagemaker.recipes._common.data import table_streams
from lightning_sagemaker.recipes._common.data.tables import DataError, find_files, read_files
from lightning_sagemaker.recipes.albert_mlm.articles import TextSourceError
from lightning_sagemaker.recipes.albert_mlm.text import find_text
from lightning_sagemaker.recipes.bert_qa.squad import read_questions

NAMES = ["negative", "positive"]
ROWS = [{"text": f"text {number}", "label": number % 2} for number in range(3000)]
NAMED = [{**row, "label": NAMES[row["label"]]} for row in ROWS]
OTHERS = {
    "page.html": "<!DOCTYPE html>\n<html><body><p>words</p></body></html>\n",
    "page.txt": "\n<html>\n<p>words</p>\n</html>\n",
    "wiki.xml": '<mediawiki xml:lang="en">\n<page><text>words</text></page>\n</mediawiki>\n',
    "sheet.xls": '\ufeff<?xml version="1.0"?>\n<Workbook><Worksheet/></Workbook>\n',
    "letter.rtf": "{\\rtf1\\ansi\n\\par words\n}\n",
    "paper.pdf": "%PDF-1.4\n1 0 obj\nendobj\n%%EOF\n",
    "paper.ps": "%!PS-Adobe-3.0\n(words) show\n",
    "pages.wet": "WARC/1.0\r\nWARC-Type: conversion\r\n\r\nwords\r\n",
}


@pytest.fixture
def dataset():
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=NAMES)})
    return datasets.Dataset.from_list(ROWS, features=features)


def test_what_datasets_saves_to_disk_is_read_as_the_hubs_copy_is(tmp_path, dataset):
    parts = {"train": dataset, "test": dataset.select([1, 0])}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "both"))
    dataset.save_to_disk(str(tmp_path / "one"), num_shards=2)
    assert read_files(find_files(str(tmp_path / "both"), "data.train")) == NAMED
    assert read_files(find_files(str(tmp_path / "both"), "data.test")) == [NAMED[1], NAMED[0]]
    assert read_files(find_files(str(tmp_path / "one"), "data.train")) == NAMED
    assert list(find_text(str(tmp_path / "both"), {}).documents()) == [row["text"] for row in ROWS]


def test_names_of_classes_are_those_in_the_schema(tmp_path, dataset):
    dataset.to_parquet(str(tmp_path / "table.parquet"))
    assert read_files([tmp_path / "table.parquet"]) == NAMED
    unlabeled = dataset.select([0]).map(lambda row: {"label": -1})
    unlabeled.to_parquet(str(tmp_path / "table.parquet"))
    assert read_files([tmp_path / "table.parquet"])[0]["label"] is None
    pandas.DataFrame(ROWS).to_parquet(tmp_path / "table.parquet")
    assert read_files([tmp_path / "table.parquet"]) == ROWS


@pytest.mark.parametrize("form", [datasets.Sequence, lambda feature: [feature]], ids=["sequence", "list"])
def test_names_of_several_classes_are_those_in_the_schema(tmp_path, form):
    classes = datasets.ClassLabel(names=NAMES)
    features = datasets.Features({"text": datasets.Value("string"), "labels": form(classes)})
    rows = [{"text": "a", "labels": [1, 0]}, {"text": "b", "labels": []}, {"text": "c", "labels": [1]}]
    datasets.Dataset.from_list(rows, features=features).to_parquet(str(tmp_path / "table.parquet"))
    expected = [{**row, "labels": classes.int2str(row["labels"])} for row in rows]
    assert read_files([tmp_path / "table.parquet"]) == expected


def test_feather_is_read_as_pandas_reads_it(tmp_path):
    for compression in ("uncompressed", "zstd"):
        pandas.DataFrame(ROWS).to_feather(tmp_path / "table.feather", compression=compression)
        assert read_files(find_files(str(tmp_path), "data.train")) == ROWS


@pytest.mark.parametrize("name", ["table.txt", "table", "table.jsonlines", "table.csv"])
@pytest.mark.parametrize("whole", [1 << 26, 1000], ids=["whole", "streamed"])
def test_json_by_another_name_is_json(tmp_path, monkeypatch, name, whole):
    monkeypatch.setattr(table_streams, "_WHOLE", whole)
    path = tmp_path / name
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    for content in (lines, "\n" + json.dumps(ROWS), "\ufeff" + json.dumps(ROWS, indent=1)):
        path.write_text(content)
        assert read_files([path]) == ROWS
        if name != "table.csv":
            assert list(find_text(str(path), {}).documents()) == [row["text"] for row in ROWS]


@pytest.mark.parametrize("name", OTHERS)
def test_documents_are_neither_tables_nor_text(tmp_path, name):
    path = tmp_path / name
    path.write_text(OTHERS[name])
    with pytest.raises(DataError, match=r"cannot be read: it is an? .*HINT: unpack it, or export it as CSV"):
        read_files([path])
    with pytest.raises(TextSourceError, match=r"cannot be read: it is an? .*HINT: extract its text"):
        list(find_text(str(path), {}).documents())


@pytest.mark.parametrize("name", ["table.csv", "table.parquet", "table.json", "table.txt"])
def test_a_file_that_git_lfs_stores_is_not_here(tmp_path, name):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    for read in (
        lambda path: read_files([path]),
        lambda path: read_questions(str(path), "data.train", "train"),
        lambda path: list(find_text(str(path), {}).documents()),
    ):
        with pytest.raises(
            ValueError, match=r"a pointer to the file, which Git LFS stores\. HINT: run `git lfs pull`"
        ) as error:
            read(tmp_path / name)
        assert str(error.value).count("HINT") == 1


@pytest.mark.parametrize("whole", [1 << 26, 0], ids=["whole", "streamed"])
def test_halves_of_characters_in_json_are_replaced(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(table_streams, "_WHOLE", whole)
    texts = {r"cut \ud83d": "cut \ufffd", r"\uDE00\ud83d\ude00": "\ufffd\U0001f600", r"\\ud83d \u00e4": "\\ud83d ä"}
    lines = [f'{{"text": "{text}", "more": ["{text}"]}}' for text in texts]
    path = tmp_path / "table.json"
    for content in ("\n".join(lines), f"[{','.join(lines)}]", f'{{"data": [{",".join(lines)}]}}'):
        path.write_text(content)
        assert read_files([path]) == [{"text": text, "more": [text]} for text in texts.values()]
        assert list(find_text(str(path), {}).documents()) == list(texts.values())
    path.write_text(
        r'[{"context": "x \ud83d y", "qas": [{"id": 1, "question": "?", "answer": {"text": "y", "answer_start": 4}}]}]'
    )
    [question], _ = read_questions(str(path), "data.train", "train")
    assert (question.context, question.misplaced) == ("x \ufffd y", False)


def test_text_with_brackets_is_text(tmp_path):
    path = tmp_path / "text.txt"
    lines = ["<3 you", "{braces} here", '["a"] is a list', "[{]"]
    for begin in range(len(lines)):
        path.write_text("".join(f"{line}\n" for line in lines[begin:]))
        assert list(find_text(str(path), {}).documents()) == lines[begin:]
