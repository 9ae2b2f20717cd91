# SPDX-License-Identifier: Apache-2.0
"""Folders with the files of several splits: each split reads those that the package `datasets` finds for it."""

import logging

import datasets
import numpy
import pytest

from lightning_sagemaker.recipes._common.data.split_folders import files_of_split
from lightning_sagemaker.recipes._common.data.tables import DataError, choose_records, find_files, read_tables
from lightning_sagemaker.recipes.albert_mlm.text import TextSourceError, find_text

OPTIONS = {"train": "data.train", "validation": "data.validation", "test": "data.test"}
LAYOUTS = {
    "files": ["train.csv", "validation.csv", "test.csv"],
    "folders": ["train/a.csv", "train/b.csv", "dev/a.csv", "testing/a.csv"],
    "of the hub": ["data/train-00000-of-00002.csv", "data/train-00001-of-00002.csv", "data/test-00000-of-00001.csv"],
    "converted by the hub": ["default/train/0000.csv", "default/validation/0000.csv"],
    "of GLUE": ["train.csv", "dev_matched.csv", "dev_mismatched.csv", "test_matched.csv"],
    "of SQuAD": ["train-v1.1.csv", "dev-v1.1.csv"],
    "with a prefix": ["tweets_train.csv", "tweets_valid.csv"],
    "of other words": ["pretraining.csv", "retest.csv", "evaluations.csv"],
    "with others": ["train.csv", "holdout.csv"],
    "months": ["2024-01.csv", "2024-02.csv"],
}


def made(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"text,label\n{name},x\n")
    return str(folder)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_split_reads_what_datasets_finds_for_it(tmp_path, layout):
    folder = made(tmp_path / "table", LAYOUTS[layout])
    expected = datasets.load_dataset(folder, cache_dir=str(tmp_path / "cache"))
    for split, option in OPTIONS.items():
        if split in expected:
            found = sorted(str(path.relative_to(folder)) for path in find_files(folder, option))
            assert found == sorted(expected[split]["text"]), split


@pytest.mark.parametrize(
    "names", [["trainData.csv", "testData.csv"], ["trainset.csv", "testset.csv"], ["Train.CSV", "X_Test.CSV"]]
)
def test_each_split_reads_what_a_person_finds_for_it(tmp_path, names):
    folder = made(tmp_path, names)
    assert [path.name for path in find_files(folder, "data.train")] == names[:1]
    assert [path.name for path in find_files(folder, "data.test")] == names[1:]


def test_text_of_other_splits_is_not_trained_on(tmp_path):
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text(f"an article of {name}\n")
    assert list(find_text(str(tmp_path), {}).documents()) == ["an article of train"]
    assert list(find_text(str(tmp_path), {}, "data.validation").documents()) == ["an article of valid"]


def test_what_is_left_out_is_said_once(tmp_path, caplog):
    folder = made(tmp_path, ["train.csv", "test.csv"])
    with caplog.at_level(logging.WARNING):
        find_files(folder, "data.train")
        find_files(folder, "data.train")
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder}: reading only the files named for train, not test.csv."
        " HINT: data.validation and data.test take the same folder."
    ]


def test_files_of_other_splits_only_are_refused_unless_they_are_all_of_one(tmp_path):
    folder = made(tmp_path, ["validation.csv", "test.csv"])
    with pytest.raises(
        DataError, match=r"other splits: test\.csv, validation\.csv\. HINT: give the file for data\.train"
    ):
        find_files(folder, "data.train")
    assert [path.name for path in find_files(folder, "data.predict")] == ["test.csv"]
    (tmp_path / "test.csv").unlink()
    assert [path.name for path in find_files(folder, "data.test")] == ["validation.csv"]


def test_a_few_such_names_among_many_mean_nothing(tmp_path):
    folder = made(tmp_path, ["Train.csv", "Crash test.csv", "Bus.csv", "Car.csv", "Tram.csv"])
    assert len(find_files(folder, "data.train")) == 5


def test_caches_beside_a_saved_dataset_are_not_read(tmp_path):
    folder = tmp_path / "saved"
    datasets.Dataset.from_dict({"text": ["A", "B"], "label": ["x", "y"]}).save_to_disk(folder)
    saved = datasets.load_from_disk(str(folder))
    saved.map(lambda record: {"text": record["text"].lower()})
    saved.shuffle(seed=0).flatten_indices()
    assert len(list(folder.glob("cache-*.arrow"))) > 1
    assert [path.name for path in find_files(str(folder), "data.train")] == ["data-00000-of-00001.arrow"]
    assert list(find_text(str(folder), {}).documents()) == ["A", "B"]


def test_what_a_killed_job_has_left_is_not_read(tmp_path, caplog):
    folder = made(tmp_path / "out", ["part-0.csv", "_temporary/0/part-0.csv", "_temporary/0/part-1.csv"])
    assert [path.name for path in find_files(folder, "data.train")] == ["part-0.csv"]
    assert "reading no files of folders whose names begin with _: _temporary/0/part-0.csv" in caplog.text
    only = made(tmp_path / "own", ["_2024/a.csv"])
    assert len(find_files(only, "data.train")) == 1


def test_a_table_whose_log_tells_which_files_count_is_refused(tmp_path):
    folder = made(tmp_path, ["part-0.csv", "part-1.csv", "_delta_log/00000000000000000000.json"])
    with pytest.raises(DataError, match=r"is a Delta table: .* HINT: export it"):
        find_files(folder, "data.train")


def test_a_file_in_two_formats_is_not_read_twice(tmp_path):
    folder = made(tmp_path / "tables", ["a/x.csv", "b/x.csv", "a/x.xlsx"])
    with pytest.raises(DataError, match=r"holds a/x\.csv and a/x\.xlsx, the same by name in two formats\. HINT"):
        find_files(folder, "data.train")
    texts = tmp_path / "texts"
    made(texts, ["x.txt", "x.txt.gz"])
    with pytest.raises(TextSourceError, match=r"x\.txt and x\.txt\.gz"):
        find_text(str(texts), {})
    shards = [tmp_path / f"x.tfrecord-0000{number}-of-00002" for number in range(2)]
    assert files_of_split(shards, lambda path: path.relative_to(tmp_path), "x", "data.text") == shards


def test_a_column_of_splits_tells_which_records_are_read(tmp_path, caplog):
    (tmp_path / "table.csv").write_text("text,label,Split\na,x,Train\nb,y,dev\nc,x,TRAIN\nd,y,test\n")
    table, _ = read_tables([tmp_path / "table.csv"])

    def read(option):
        return [record["text"] for record in choose_records(table, "table.csv", option)]

    with caplog.at_level(logging.WARNING):
        assert [read(option) for option in OPTIONS.values()] == [["a", "c"], ["b"], ["d"]]
    assert "reading only the 2 records of train in the column 'Split', of 4" in caplog.text
    for other in ("label", "text"):  # a class, and a column with other values
        (tmp_path / "other.csv").write_text(
            (tmp_path / "table.csv").read_text().replace("Split", "rest").replace(other, "set")
        )
        other_table, _ = read_tables([tmp_path / "other.csv"])
        assert choose_records(other_table, "other.csv", "data.train") is other_table
    only_test = table.take(numpy.array([3]))
    assert choose_records(only_test, "table.csv", "data.train") is only_test
    with pytest.raises(DataError, match=r"'Split' has records of other splits only: test, validation\. HINT: give"):
        choose_records(table.take(numpy.array([1, 3])), "table.csv", "data.train")
