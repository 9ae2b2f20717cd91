# SPDX-License-Identifier: Apache-2.0
"""What is wrong or odd in data: refused with the records' numbers, mended where asked, counted before training."""

import csv
import html.parser
import json
import random

import pandas
import pytest

from lightning_sagemaker.recipes._common.data.tables import DataError
from lightning_sagemaker.recipes._common.outputs.report_pages import findings, html_page, terminal_lines
from lightning_sagemaker.recipes._common.outputs.text_report import count_everything
from lightning_sagemaker.recipes.sequence_classification.data import ClassificationDataModule
from lightning_sagemaker.recipes.sequence_classification.train import main

CLEAN = [[f"the {word} number {i}", word] for i in range(20) for word in ("red", "green")]


def write(path, rows, header=("text", "label")):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def prepared(folder, rows, **options):
    given = {"vocab_size": 200, "max_length": 16, "global_batch_size": 8, "cache_dir": str(folder / "cache")}
    data = ClassificationDataModule(train=write(folder / "train.csv", rows), **{**given, **options})
    data.prepare_data()
    data.setup("fit")
    return data


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["a", ""], ["b", "red"], ["c", " "]], r"train data has no label in records 41, 43 \('', ' ' in .*'label'\)"),
        *(([["a", word]], r"no label in record 41 ") for word in ("nan", "N/A", "None", "NULL", "#N/A", "\u200b")),
        ([["", "red"]], r"train data has no text in record 41 \(column 'text'\)"),
        ([["\xa0", "red"]], r"no text in record 41"),
        ([["a", "red "]], r"the data has labels that look alike: 'red' \(20\) and 'red ' \(1\)"),
        ([["a", "RED"]], r"'red' \(20\) and 'RED' \(1\)"),
        ([["a", "re\u200bd"]], r"'red' \(20\) and 're.{1,8}d' \(1\)"),
        ([["a", "caf\u00e9"], ["b", "cafe\u0301"]], r"look alike: 'caf"),
        ([["a", "1"], ["b", "1.0"], ["c", "01"]], r"'1' \(1\) and '1.0' \(1\) and '01' \(1\)"),
    ],
)
def test_what_is_certainly_wrong_names_its_records(tmp_path, rows, message):
    with pytest.raises(DataError, match=f"{message}.*HINT"):
        prepared(tmp_path, CLEAN + rows)
    assert not list((tmp_path / "cache").glob("*"))


def test_columns_that_could_both_be_meant_are_refused(tmp_path):
    train = write(tmp_path / "two.csv", [["a", "x", "y"]], ("text", "label", "category"))
    options = {"cache_dir": str(tmp_path / "cache")}
    with pytest.raises(DataError, match=r"which of the columns label, category holds the label.*HINT"):
        ClassificationDataModule(train=train, **options).prepare_data()
    with pytest.raises(DataError, match=r"no column 'lable' \(did you mean 'label'\?\)"):
        ClassificationDataModule(train=train, label_column="lable", **options).prepare_data()
    (tmp_path / "train.json").write_text(json.dumps([{"text": {"a": 1}, "label": "x"}, {"text": "b", "label": "y"}]))
    with pytest.raises(DataError, match=r"no text in record 1, but dict .*'text'.*HINT"):
        ClassificationDataModule(train=str(tmp_path / "train.json"), **options).prepare_data()
    lines = tmp_path / "lines.csv"
    lines.write_text("Where is my money?\nMy card is lost\n")
    with pytest.raises(DataError, match=r"the first row must hold their names"):
        ClassificationDataModule(train=None, predict=str(lines), **options).prepare_data()


def test_mending_is_asked_for_and_counted(tmp_path):
    rows = [["a", " Red"], ["b", "\uff52ed"], ["c", ""], ["", "red"], ["d", "gr een"]]
    data = prepared(
        tmp_path, CLEAN + rows, clean="strip, casefold,unicode,drop_empty", val_fraction=0.0, test_fraction=0.0
    )
    assert data.scheme.names == ("gr een", "green", "red")
    assert data.manifest["counts"] == {"train": 43}
    assert data.report()["cleaned"] == {"strip": 1, "casefold": 1, "unicode": 1, "drop_empty": 2}
    # A name that looks like a missing label is one where it is said.
    kept = prepared(tmp_path, [*CLEAN, ["a", "none"], ["b", "none"]], label_map={"none": "none"})
    assert "none" in kept.scheme.names
    with pytest.raises(Exception, match=r"data\.clean='tidy' was set\. HINT"):
        ClassificationDataModule(clean="strip,tidy")
    with pytest.raises(Exception, match=r"data\.encoding='utf-9' was set.*HINT"):
        ClassificationDataModule(encoding="utf-9")


def test_scores_are_no_labels_that_look_the_same(tmp_path):
    rows = [[f"text {i}", value] for i, value in enumerate(["1", "1.0", "2.5", "1.00"] * 10)]
    assert prepared(tmp_path, rows).report()["regression"]


class Page(html.parser.HTMLParser):
    """What a browser would fetch, and which elements are open at the end."""

    def __init__(self, text):
        super().__init__()
        self.fetched, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.fetched += [value for name, value in attrs if name in ("src", "href") or "url(" in (value or "")]
        if tag not in ("meta", "rect", "line"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("rect", "line", "title") or self.open[-1:] == [tag]:
            assert self.open.pop() == tag


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_that_pandas_finds(seed):
    chance = random.Random(seed)
    kinds = {"train": 60, "val": 15, "test": 15}
    texts = {
        split: [(chance.choice("abcdefgh") * chance.randint(0, 3),) for _ in range(n)] for split, n in kinds.items()
    }
    several = seed % 2
    labels = {
        split: [chance.sample(["x", "y", "z"], chance.randint(1, 3)) if several else chance.choice("xy") for _ in found]
        for split, found in texts.items()
    }
    lengths = {split: [1] * len(found) for split, found in texts.items()}
    report = count_everything(texts, labels, lengths, 8)
    rows = [
        (split, text, " | ".join(sorted(label)) if several else label)
        for split, found in texts.items()
        for (text,), label in zip(found, labels[split], strict=True)
    ]
    frame = pandas.DataFrame(rows, columns=["split", "text", "label"])
    for split, part in frame.groupby("split"):
        wanted = {
            "rows": len(part),
            "empty": int((part.text == "").sum()),
            "duplicates": int(part.text.duplicated().sum()),
        }
        assert report["splits"][split] == wanted
    known = set(frame.text[frame.split == "train"])
    for overlap in report["overlaps"]:
        both = frame[(frame.split == overlap["split"]) & frame.text.isin(known)]
        assert (overlap["count"], overlap["examples"]) == (len(both), both.text.head(5).tolist())
    named = frame.groupby("text", sort=False).label.unique()
    conflicts = [{"text": text, "labels": sorted(found)} for text, found in named.items() if len(found) > 1]
    assert report["conflicts"] == {"count": len(conflicts), "examples": conflicts[:5]}
    assert conflicts
    assert count_everything(texts, {}, lengths, 8)["conflicts"] == {"count": 0, "examples": []}


def test_everything_odd_is_counted_as_by_hand(tmp_path):
    long = "word " * 30
    train = [*CLEAN, ["<b>Same</b>", "red"], ["<b>same</b> ", "green"], [long + "one", "red"], [long + "two", "red"]]
    test = [["the red NUMBER 3", "red"], ["the  red number 4", "red"], ["something else", "green"], ["мир", "red"]]
    data = prepared(tmp_path, train, test=write(tmp_path / "test.csv", test), val_fraction=0.0, test_fraction=0.0)
    report = data.report()
    assert report["splits"]["train"] == {"rows": 44, "empty": 0, "duplicates": 1}
    assert report["classes"]["train"] == {"red": 23, "green": 21}
    assert [(overlap["split"], overlap["count"]) for overlap in report["overlaps"]] == [("test", 2)]
    conflict = {"text": "<b>Same</b>", "labels": ["green", "red"]}
    assert report["conflicts"] == {"count": 1, "examples": [conflict]}
    tokenizer = data.load_tokenizer()
    lengths = [len(tokenizer(text)["input_ids"]) for text, _ in train]
    assert report["lengths"]["train"]["cut"] == sum(length > 16 for length in lengths) == 2
    assert report["lengths"]["train"]["longest"] == max(lengths)
    assert sum(report["lengths"]["train"]["histogram"]["counts"]) == 44
    assert report["scripts"]["Cyrillic"] > 0
    said = findings(report)
    assert "test: 2 of 4 texts are also in the training data: its scores are too high" in said
    assert "train: 2 of 44 texts (4.5%) are longer than data.max_length=16 and cut" in said
    assert any(line.startswith("texts with different labels: 1, such as '<b>Same</b>'") for line in said)
    assert "train: duplicate texts: 1" in said
    assert all("\n" not in line for line in terminal_lines(report))
    page = Page(text := html_page("Data", report))
    assert (page.fetched, page.open) == ([], [])
    assert "&lt;b&gt;Same&lt;/b&gt;" in text
    assert "<b>" not in text
    assert "delimiter &#x27;,&#x27;, utf-8" in text


def test_what_an_owner_would_want_to_know_is_said():
    def said(texts, labels):
        report = count_everything({"train": texts}, {"train": labels}, {"train": [1] * len(texts)}, 8)
        return findings({**report, "cleaned": {}, "regression": False})

    names = ["red", "green", "blue"] * 3
    telling = [(str(number), name) for number, name in enumerate(names)]
    assert said(telling, names) == ["the second text is another name of the class: a model learns nothing else from it"]
    assert said([*telling, ("9", "red")], [*names, "blue"]) == []
    letters = [(letter,) for letter in "abcdefghijk"]
    assert said(letters[:4], [["x"], ["y"], [], ["x", "y"]]) == ["train: records without a class: 1"]
    classes = ["food"] * 5 + ["rent"] * 5
    assert said(letters, [*classes, "foood"]) == [
        "train: classes with one text: 1, such as 'foood', which resembles 'food'"
    ]
    assert said(letters, [*classes, "v1"]) == ["train: classes with one text: 1, such as 'v1'"]


def test_a_run_reports_first_and_predictions_keep_the_input(tmp_path, caplog):
    caplog.set_level("INFO", "lightning_sagemaker")
    rows = [[f"id-{i}", "ä;b", text, label] for i, (text, label) in enumerate(CLEAN)]
    train = write(tmp_path / "train.csv", rows, ("id", "note", "text", "label"))
    new = [["x-1", "10", "the red\nnumber 1"], ["x-0", "20", "the green number 2 " * 3], ["x-2", "30", ""]]
    file = tmp_path / "new.csv"
    file.write_bytes(("customer;amount;text\n" + "".join(f'{a};{b};"{c}"\n' for a, b, c in new)).encode("utf-16"))
    common = [
        "--config",
        "tiny.yaml",
        "--strategy",
        "auto",
        "--train_file",
        train,
        "--cache_dir",
        str(tmp_path / "cache"),
    ]
    common += [
        "--run_dir",
        str(tmp_path),
        "--data.text_columns",
        "text",
        "--global_batch_size",
        "8",
        "--vocab_size",
        "100",
    ]
    main(["fit", *common, "--max_steps", "1", "--trainer.max_epochs", "-1"])
    first = next(place for place, line in enumerate(caplog.messages) if line.startswith("data: train "))
    assert any(line.startswith(f"train: {train}: delimiter ',', utf-8") for line in caplog.messages[:first])
    assert not any(line.startswith("step=") for line in caplog.messages[:first])
    assert (tmp_path / "output" / "data.html").read_text().startswith("<!doctype html>")
    main(["predict", *common, "--predict_file", str(file), "--ckpt_path", str(tmp_path / "checkpoints" / "last.ckpt")])
    with (tmp_path / "output" / "predictions.csv").open(newline="") as predictions:
        header, *body = csv.reader(predictions)
    assert header == ["index", "customer", "amount", "text", "prediction", "p_green", "p_red"]
    assert [row[1:4] for row in body] == new
    assert [row[0] for row in body] == ["0", "1", "2"]
