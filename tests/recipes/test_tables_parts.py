# SPDX-License-Identifier: Apache-2.0
"""Tables of several files, as parallel programs, exports of each month and browsers leave them in a folder."""

import pandas
import pytest

from lightning_sagemaker.recipes._common.data.tables import DataError, find_files, read_files, read_tables
from lightning_sagemaker.recipes.albert_mlm.text import find_text
from lightning_sagemaker.recipes.bert_qa.squad import read_questions


@pytest.mark.parametrize(
    ("name", "empty", "filled"),
    [
        ("csv", "text,label\n", "text,label\nx,y\n"),
        ("json", "", '{"text": "x", "label": "y"}\n'),
        ("csv", "", "text,label\nx,y\n"),
    ],
)
def test_parts_without_records_beside_others_are_left_out(tmp_path, name, empty, filled):
    parts = [tmp_path / f"part-{number}.{name}" for number in range(3)]
    for part, content in zip(parts, (empty, filled, empty), strict=True):
        part.write_text(content)
    records, read = read_tables(parts)
    assert list(records) == [{"text": "x", "label": "y"}]
    assert [line.endswith(", no records") for line in read] == [True, False, True]
    with pytest.raises(DataError, match=r"part-0.* has no records\. HINT"):
        read_tables([parts[0], parts[2]])
    assert list(find_text(str(tmp_path), {}).documents()) == ["x"]


def test_questions_in_parts_of_which_one_is_empty(tmp_path):
    (tmp_path / "part-0.json").touch()
    (tmp_path / "part-1.json").write_text('{"question": "Q?", "context": "C", "answer": ""}\n')
    assert len(read_questions(str(tmp_path), "data.train", "train")[0]) == 1


def test_json_that_lacks_keys_without_a_value_throughout_a_file(tmp_path):
    for number, part in enumerate(['{"text": "x", "label": "y"}\n', '{"text": "x", "note": "n", "label": "y"}\n']):
        (tmp_path / f"{number}.json").write_text(part)
    assert [record["note"] for record in read_files(find_files(str(tmp_path), "data.train"))] == [None, "n"]
    (tmp_path / "config.json").write_text('{"text": "x", "seed": 0}')
    with pytest.raises(DataError, match=r"config\.json has the columns text, seed, but .*0\.json has .*HINT"):
        read_files(find_files(str(tmp_path), "data.train"))


def test_a_file_that_was_downloaded_twice_is_not_read_twice(tmp_path):
    for name, label in (("export.csv", "y"), ("export (1).csv", "y"), ("export (2).csv", "z")):
        (tmp_path / name).write_text(f"text,label\nx,{label}\nw,z\n")
    files = find_files(str(tmp_path), "data.train")
    with pytest.raises(DataError, match=r"export \(1\)\.csv and .*export\.csv have the same content.* HINT: delete"):
        read_files(files)
    assert len(read_files(files[1:])) == 4


def test_columns_in_the_names_of_folders_are_those_that_pandas_reads(tmp_path):
    table = pandas.DataFrame({"text": ["a", "b", "c"], "label": ["food", "a/b c", "food"], "year": [2024, 2025, 2024]})
    table.to_parquet(tmp_path / "table", partition_cols=["year", "label"])

    def found(folder):
        return list(read_tables(find_files(str(folder), "data.train"), root=folder)[0])

    theirs = pandas.read_parquet(tmp_path / "table").astype(str).to_dict("records")
    assert sorted(found(tmp_path / "table"), key=lambda record: record["text"]) == sorted(
        theirs, key=lambda one: one["text"]
    )
    for name in ("label=x", "label=__HIVE_DEFAULT_PARTITION__"):  # which pandas does not read
        (tmp_path / "nulls" / name).mkdir(parents=True)
        (tmp_path / "nulls" / name / "part-0.csv").write_text("text\na\nb\n")
    assert [record["label"] for record in found(tmp_path / "nulls")] == [None, None, "x", "x"]


def test_splits_in_the_names_of_folders(tmp_path):
    for name in ("split=train/label=test", "split=train/label=x", "split=test/label=x"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "part-0.csv").write_text("text\na\nb\n")
    assert [len(find_files(str(tmp_path), option)) for option in ("data.train", "data.test")] == [2, 1]
