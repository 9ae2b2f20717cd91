# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF001 (which characters look like others is what some of this is about)
"""Labels as people's tables have them: what a reader of the table would say, or one sentence that asks."""

import json
import logging

import numpy
import pandas
import pytest

from lightning_sagemaker.recipes._common.data.table import Table
from lightning_sagemaker.recipes._common.data.tables import DataError, read_files
from lightning_sagemaker.recipes.sequence_classification.cleaning import (
    check_answers,
    check_label_kinds,
    check_labels,
    is_missing,
    look,
)
from lightning_sagemaker.recipes.sequence_classification.columns import find_text_columns
from lightning_sagemaker.recipes.sequence_classification.data import ClassificationDataModule
from lightning_sagemaker.recipes.sequence_classification.labels import MULTI, REGRESSION, SINGLE, clean, find_scheme


@pytest.mark.parametrize(
    "labels",
    [
        ["0,5", "1,25", "3"],
        ["1.234,56 €", "12,00 €"],
        ["$1,234.50", "$7.25"],
        ["12.5%", "7%"],
        ["1 234,5 EUR", "2,5 EUR"],
        ["-1'234.50", "7.00"],
        ["0,3", "1,4"],
    ],
)
def test_numbers_that_are_not_written_as_programs_write_them_are_no_names_of_classes(labels):
    with pytest.raises(DataError, match=r"not all of which are written like 1234\.5\. HINT: .*data\.label_delimiter"):
        find_scheme(labels, "auto")
    assert find_scheme(labels, SINGLE).names == tuple(sorted(labels))


@pytest.mark.parametrize(
    "labels",
    [
        ["19%", "7%"],
        ["1.2.3", "1.10.1"],
        ["18-25", "26-35"],
        ["01.02.2024", "02.02.2024"],
        ["04.2", "05.1"],
        ["3,5 stars", "4 stars"],
        ["1", "2"],
        ["9.0", "10.0"],
    ],
)
def test_other_texts_with_digits_are_classes(labels):
    assert find_scheme(labels, "auto").problem == SINGLE


def test_a_label_of_other_labels_is_asked_about():
    for label in (
        "rent|food",
        "rent; food",
        "food, rent, rent",
        "rent#food",
        "rent/food",
        "|rent|food|",
        "<rent><food>",
    ):
        with pytest.raises(DataError, match=r"consists of other labels\. HINT: .*data\.label_delimiter"):
            find_scheme(["rent", "food", label], "auto")
    assert find_scheme(["rent", "food, drinks", "food"], "auto").problem == SINGLE
    with pytest.raises(DataError, match=r"'<a><b>' consists of other labels"):
        find_scheme(["<a>", "<b>", "<a><b>"], "auto")
    with pytest.raises(DataError, match=r"'cs\.CL cs\.LG' consists of other labels.*data\.label_delimiter=' '"):
        find_scheme(["cs.CL", "cs.LG", "cs.CV", "cs.CL cs.LG", "cs.CV cs.CL"], "auto")
    assert find_scheme(["food", "delivery", "food delivery", "C", "C++", "self-care", "self", "care"], "auto").names
    assert find_scheme(clean(["rent", "rent|food"], "|", {}), "auto").problem == MULTI


def test_marks_in_place_of_a_label_are_asked_about():
    for mark in ("-", "?", "--", ". ."):
        with pytest.raises(
            DataError, match=r"has neither letters nor digits, as others have\. HINT: if it means no label"
        ):
            find_scheme(["rent", "food", mark], "auto")
        assert find_scheme(["rent", "food", mark], SINGLE).names
    for labels in (["+", "-"], ["+", "-", "0"], ["\U0001f44d", "\U0001f44e"], ["?", "!"], ["good", ":-)+"]):
        assert find_scheme(labels, "auto").problem == SINGLE


def test_labels_that_annotators_rejected_are_refused():
    records = [{"text": "a", "label": "x", "answer": answer} for answer in ("accept", "reject", "ignore")]
    with pytest.raises(DataError, match=r"not accepted in records 2, 3 \(column 'answer'\)\. HINT: delete the records"):
        check_answers(Table.of(records), "label", "the train data")
    check_answers(Table.of(records[:1]), "label", "the train data")
    check_answers(Table.of(records), "answer", "the train data")
    check_answers(Table.of([*records, {**records[0], "answer": "perhaps"}]), "label", "the train data")


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("status", ("Validated", "Discarded", "Default")),
        ("label.responses.status", (["submitted"], ["submitted", "discarded"], ["draft"])),
    ],
)
def test_labels_that_annotators_discarded_are_refused(column, values):
    """As Argilla exports them, in its first release and since the second."""
    records = [{"text": "a", "label.responses": ["x"], column: value} for value in values]
    with pytest.raises(
        DataError, match=rf"not accepted in records 2, 3 \(column '{column}'\)\. HINT: delete the records"
    ):
        check_answers(Table.of(records), "label.responses", "the train data")
    check_answers(Table.of([*records, {**records[0], column: "Settled"}]), "label.responses", "the train data")


@pytest.mark.parametrize(
    "texts",
    [
        ("text", "text_pair"),
        ("question", "sentence"),
        ("question1", "question2"),
        ("sentence1", "sentence2"),
        ("text",),
    ],
)
def test_pairs_of_texts_are_found_by_their_names(texts):
    record = {**dict.fromkeys(texts, "a b"), "idx": 1, "title": "a", "label": "x"}
    assert find_text_columns(Table.of([record]), "label") == texts


def test_ids_are_no_classes():
    with pytest.raises(
        DataError, match=r"each of the 12 training records has a label of its own, such as 'id-0'.*HINT"
    ):
        find_scheme([f"id-{number}" for number in range(12)], SINGLE)
    assert len(find_scheme(["a", "b", "c"], "auto").names) == 3


def test_codes_that_differ_as_texts_only_are_asked_about():
    with pytest.raises(DataError, match=r"'4\.1' and '4\.10' are the same number.*HINT: set data\.problem"):
        find_scheme(["4.1", "4.10", "12.3"], "auto")
    assert find_scheme(["4.1", "4.10"], SINGLE).names == ("4.1", "4.10")
    assert find_scheme(["4.0", "4", "3.5"], "auto").problem == REGRESSION


def test_lists_in_a_csv_file_are_several_labels(tmp_path):
    lists = [["a", "b"], ["it's"], [], ["c"]]
    table = pandas.DataFrame({"label": lists, "json": [json.dumps(part) for part in lists]})
    table.to_csv(tmp_path / "table.csv", index=False)
    records = read_files([tmp_path / "table.csv"])
    for column in ("label", "json"):
        labels = clean((record[column] for record in records), None, {"c": "d"})
        assert labels == [["a", "b"], ["it's"], [], ["d"]]
        assert find_scheme(labels, "auto").problem == MULTI
    assert clean(["[other]", "[food]"], None, {}) == ["[other]", "[food]"]
    assert clean(["[1]", "a"], None, {}) == ["[1]", "a"]


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset])
def test_collections_that_python_printed_are_several_labels(kind):
    lists = [["it's", "x"], ["x"], [], ["y"]]
    assert clean([str(kind(part)) for part in lists], None, {}) == lists
    for names in (["(other)", "(food)"], ["{other}", "{food}"], ["set", "set (a)"]):
        assert clean(names, None, {}) == names


def test_labels_in_brackets_are_divided_at_them():
    assert clean(["<p><q>", "<p>"], "<", {}) == [["p", "q"], ["p"]]


def test_numpys_arrays_in_a_csv_file_are_refused():
    for labels in ([str(numpy.array(["a", "b"]))], ["['a']", str(numpy.array(["a", "b"]))], ["[1]", "[1 2]"]):
        with pytest.raises(
            DataError, match=r"lists written as text, of which 1 cannot be read.*HINT: write them in JSON"
        ):
            clean(labels, None, {})


@pytest.mark.parametrize(
    ("lists", "why"),
    [
        ([[1, 0, 0], [0, 1, 1]], "it has 0 twice"),
        ([[0.0, 1.0], [1.0, 0.0]], r"it has the number 0\.0"),
        ([[False, True], [True, False]], "all have the same classes"),
        (["[1, 0, 0]", "[0, 1, 0]"], "it has 0 twice"),
        ([["a"], ["a", "b", "a"]], "it has 'a' twice"),
    ],
)
def test_a_number_for_each_class_and_votes_are_no_lists_of_classes(lists, why):
    with pytest.raises(
        DataError, match=rf"is no list of a text's classes: {why}\. HINT: write the names of the classes"
    ):
        find_scheme(clean(lists, None, {}), "auto")


def test_one_class_is_not_the_first_of_several():
    scheme = find_scheme([["a"], ["b"], "a"], SINGLE)
    assert scheme.encode([["b"], "a"], "the train data").tolist() == [1, 0]
    for label in (["a", "b"], []):
        with pytest.raises(
            DataError, match=rf"has {len(label)} labels in record 2: .* takes one\. HINT: leave data\.prob"
        ):
            scheme.encode([["b"], label], "the train data")


def test_labels_that_a_map_makes_equal_count_once():
    assert clean([["a", "b"], ["b"]], None, {"b": "a"}) == [["a"], ["a"]]
    assert clean(["a|b|a", "b"], "|", {}) == [["a", "b"], ["b"]]


@pytest.mark.parametrize(
    "label", [[{"start": 0, "end": 4, "labels": ["ORG"]}], {"choices": ["a", "b"]}, [[0, 4, "ORG"]], [None], [0.5]]
)
def test_what_annotation_tools_write_into_csv_files_is_refused(label):
    with pytest.raises(DataError, match=r"labels are (lists|objects).*HINT: data\.label_column takes"):
        clean([json.dumps(label)], None, {})
    with pytest.raises(DataError, match=r"labels are (lists|objects).*HINT: data\.label_column takes"):
        clean([str(label)], None, {})


def test_scores_with_a_few_other_values_are_asked_about():
    for other in ("inf", "-", "n/m", "3.5 (estimate)"):
        with pytest.raises(
            DataError, match=r"3 of 4 different labels are numbers with a fraction.*HINT: if they are sc"
        ):
            find_scheme(["0.5", "1.5", "2.5", other], "auto")
    assert find_scheme(["2.7", "three", "four", "2.7"], "auto").names == ("2.7", "four", "three")


@pytest.mark.parametrize("label", [{"name": "a"}, [[0, 4, "ORG"]], [{"start": 0, "labels": ["ORG"]}], b"a"])
def test_labels_of_other_kinds_are_refused(label):
    with pytest.raises(DataError, match=r"no label in record 2, but .* HINT: data\.label_column"):
        check_label_kinds([{"label": ["a", 1]}, {"label": label}], "label", "the train data")


def test_names_to_map_that_are_no_labels_are_reported(tmp_path, caplog):
    (tmp_path / "table.csv").write_text("text,label\n" + "a b,rent\nc d,food\n" * 20)
    options = {"cache_dir": str(tmp_path / "cache"), "vocab_size": 100, "global_batch_size": 8}
    data = ClassificationDataModule(
        train=str(tmp_path / "table.csv"), label_map={"rent": "home", "Rnet": "home"}, **options
    )
    with caplog.at_level(logging.WARNING):
        data.prepare_data()
    assert "data.label_map names 'Rnet', which no label of the data is" in caplog.text
    assert "'rent'" not in caplog.text


def test_labels_that_are_mapped_to_none_are_dropped(tmp_path):
    (tmp_path / "table.csv").write_text("text,label\n" + "a b,rent\nc d,food\ne f,-\n" * 20)
    options = {"cache_dir": str(tmp_path / "cache"), "vocab_size": 100, "global_batch_size": 8, "label_map": {"-": ""}}
    with pytest.raises(
        DataError, match=r"no label in records 3, 6.*\('-' in the column 'label'\)\. HINT: .*drop_empty"
    ):
        ClassificationDataModule(train=str(tmp_path / "table.csv"), **options).prepare_data()
    data = ClassificationDataModule(train=str(tmp_path / "table.csv"), clean="drop_empty", **options)
    data.prepare_data()
    data.setup("fit")
    assert (data.manifest["labels"], sum(data.manifest["counts"].values())) == (["food", "rent"], 40)
    assert data.manifest["read"][-1] == "texts in 'text', labels in 'label': single_label, 2 classes"


def test_numbers_and_truths_are_not_classes_of_one_column():
    with pytest.raises(DataError, match=r"the label True in record 2 .* others that are numbers\. HINT"):
        check_label_kinds([{"label": 1}, {"label": True}], "label", "the train data")
    check_label_kinds([{"label": True}, {"label": None}, {"label": float("nan")}], "label", "the train data")


def test_labels_that_differ_as_markup_only_look_alike():
    with pytest.raises(DataError, match=r"'R&D' \(2\) and 'R&amp;D' \(1\)"):
        check_labels(["R&D", "R&amp;D", "R&D"], "the data")


@pytest.mark.parametrize(
    "labels",
    [
        "credit-card|credit_card|Credit  card",
        "food|food.|'food'",
        "don't know|don’t know|Don't know",
        "кафе|Kафе",
        "KİRA|kira",
        "❤|❤\ufe0f",
        "Food > Fruit|food>fruit",
        "1|1.0|'1'",
    ],
)
def test_labels_that_a_reader_takes_for_the_same_look_alike(labels):
    names = labels.split("|")
    with pytest.raises(DataError, match=r"look alike.*HINT"):
        check_labels(names, "the data")
    for name in names[1:]:
        assert look(name) == look(names[0])


@pytest.mark.parametrize(
    "labels",
    ["A|A-|A+", "C|C++|C#", "-1|1", "1.1|11|1-1", "10|1_0", "90071992547409930|90071992547409931", ":)|:(", "?|!"],
)
def test_labels_that_differ_in_what_is_not_decoration_do_not(labels):
    check_labels(labels.split("|"), "the data")


def test_every_marker_of_pandas_is_a_missing_label():
    from pandas._libs.parsers import STR_NA_VALUES

    assert all(map(is_missing, STR_NA_VALUES))
    assert all(map(is_missing, ["\\N", "#REF!", "#DIV/0!", "NaT", ["a", None], ["a", ""]]))
    assert not any(map(is_missing, ["N", "other", ["a"], [], 0, False, "-"]))


def test_records_that_nobody_has_labeled_are_not_taken_for_ones_without_a_class():
    labels = [["x"], ["y"], [], ["x"], []]
    with pytest.raises(
        DataError, match=r"2 of 5 records have no class, and each other has one\. HINT: .*problem=multi_label"
    ):
        find_scheme(labels, "auto")
    assert find_scheme(labels, MULTI).problem == MULTI
    assert find_scheme([*labels, ["x", "y"]], "auto").problem == MULTI


def test_ids_beside_the_only_text_are_no_texts():
    records = [{"id": 1, "Booking ID": "b7", "message": "Hi", "label": "x"}]
    assert find_text_columns(Table.of(records), "label") == ("message",)
    with pytest.raises(DataError, match="it is not clear which of the columns"):
        find_text_columns(Table.of([{**records[0], "title": "Re"}]), "label")


def test_a_column_of_texts_without_letters_is_asked_about():
    shifted = [{"text": "1", "label": "Rent", "note": "rent"}, {"text": "2", "label": "Bus", "note": "travel"}]
    with pytest.raises(
        DataError, match=r"the column 'text' seems to hold no texts: '1'\. HINT: .*data\.text_columns=text"
    ):
        find_text_columns(Table.of(shifted), "label")


@pytest.mark.parametrize(("column", "values"), [("id", ["a1", "a2"]), ("amount", ["-1,50", "3"]), ("file", ["a.txt"])])
def test_a_column_without_texts_is_not_taken_for_them(column, values):
    table = Table.of([{column: value, "label": "x"} for value in values])
    with pytest.raises(
        DataError, match=rf"the only column besides 'label' is '{column}'.*HINT: give a table with the texts"
    ):
        find_text_columns(table, "label")
    assert find_text_columns(Table.of([{"Id": 1, "Text": "Ng", "label": "x"}]), "label") == ("Text",)
    assert find_text_columns(Table.of([{"surname": "Ng", "label": "x"}]), "label") == ("surname",)
