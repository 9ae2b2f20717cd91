# SPDX-License-Identifier: Apache-2.0
"""What is not a record of a table: headers within it, and totals, notes and other tables below it."""

import pytest

from lightning_sagemaker.recipes._common.data.table_rows import table_rows
from lightning_sagemaker.recipes._common.data.tables import DataError, read_files
from lightning_sagemaker.recipes.albert_mlm.text import find_text
from tests.recipes.test_tables import workbook

ROWS = [["Rent January", "home"], ["Shell A8", "car"], ["Aldi 12", "food"], ["Rent May", "home"]]
BELOW = {
    "another table": [["name", "amount"], ["food", "12"]],
    "totals": [["Total", "4"]],
    "a date": [["Exported", "2024-05-01"]],
}


def read_csv(path, rows, newline="\n"):
    path.write_text("".join(f"{','.join(row)}{newline}" for row in rows))
    return [list(record.values()) for record in read_files([path])]


def read_excel(path, rows):
    path.write_bytes(workbook({"Sheet": rows}))
    return [list(record.values()) for record in read_files([path])]


@pytest.mark.parametrize("read", [read_csv, read_excel])
@pytest.mark.parametrize("below", BELOW)
def test_what_is_below_an_empty_row_is_refused_if_it_is_of_another_kind(tmp_path, read, below):
    table = [["text", "label"], *ROWS]
    for empty in ([], ["", ""]):
        with pytest.raises(
            DataError, match=r"below an empty row, record \d .*'label', where words are above it\. HINT"
        ):
            read(tmp_path / "table", [*table, empty, *BELOW[below]])
        assert read(tmp_path / "table", [*table, empty, *ROWS, ["42", "answer"]])[-1][0] == "42"


def test_a_line_below_the_header_is_refused(tmp_path):
    for text in ("text | label\n---|---\na | x\n", "text,label\n----,:--:\na,x\n", "text\tlabel\n====\t=====\na\tx\n"):
        (tmp_path / "table.txt").write_text(text)
        with pytest.raises(DataError, match=r"record 1 is a line of (---|===)\. HINT: delete it"):
            read_files([tmp_path / "table.txt"])


def test_spaces_after_delimiters_are_not_part_of_fields_if_the_header_has_them(tmp_path):
    (tmp_path / "table.csv").write_text('text, label\n"a, b", "x"\nc, x\n')
    assert read_files([tmp_path / "table.csv"]) == [{"text": "a, b", "label": "x"}, {"text": "c", "label": "x"}]
    (tmp_path / "table.csv").write_text("id,text, label\n1,a, x\n")
    assert read_files([tmp_path / "table.csv"]) == [{"id": "1", "text": "a", "label": " x"}]


def test_double_spaced_tables_and_short_ones_are_read(tmp_path):
    rows = [["a", "x"], ["b", "y"], ["c", "x"], ["1", "y"]]
    assert read_csv(tmp_path / "table", [["text", "label"], *rows], "\n\n") == rows
    assert read_csv(tmp_path / "table", [["text", "label"], *rows[:2], [], *rows[2:]]) == rows


@pytest.mark.parametrize("read", [read_csv, read_excel])
def test_a_header_within_a_table_is_refused(tmp_path, read):
    for again in (["text", "label"], ["\ufefftext", "label "]):
        with pytest.raises(DataError, match=r"record 5 repeats the header\. HINT: delete it"):
            read(tmp_path / "table", [["text", "\u200blabel"], *ROWS, again, *ROWS])


@pytest.mark.parametrize("read", [read_csv, read_excel])
def test_a_header_of_two_rows_is_refused(tmp_path, read):
    """As cells that are merged down leave it, and as two rows of names are exported."""
    with pytest.raises(
        DataError, match=r"record 1 repeats the header in the column 'text', so the header .* HINT: make it"
    ):
        read(tmp_path / "table", [["text", "label"], ["text", "main"], *ROWS])
    assert read(tmp_path / "short", [["a", "label"], ["a", "main"], ["text", "a"]])[0] == ["a", "main"]


TYPES = (
    [["[string]", "[category]"]],
    [["varchar(255)", "VARCHAR(20)"]],
    [["string", "discrete"], ["meta", "class"]],  # Orange
    [["", "Open-Ended Response"]],  # SurveyMonkey
    [["(free text)", ""]],
)


@pytest.mark.parametrize("read", [read_csv, read_excel])
def test_types_and_units_below_the_header_are_refused(tmp_path, read):
    for rows in TYPES:
        with pytest.raises(
            DataError, match=r"record 1 has only types or units, such as '.+', so the header .* HINT: make it one"
        ):
            read(tmp_path / "table", [["text", "label"], *rows, *ROWS])
    brackets = [["[Rewe]", "[food]"], ["[Aral]", "[car]"], ["(?)", "text"]]
    assert read(tmp_path / "all", [["text", "label"], *brackets]) == brackets
    assert read(tmp_path / "again", [["text", "label"], brackets[0], *ROWS, brackets[1]])[0] == brackets[0]


def test_a_value_that_is_the_name_of_its_column_is_none_of_a_second_header_if_it_recurs(tmp_path):
    """As ``Cleared`` in exports of YNAB; names in other words, as REDCap exports labels below names, are two rows."""
    rows = [["Rewe", "Cleared"], ["Aral", "Uncleared"], ["Lidl", "Cleared"]]
    assert read_csv(tmp_path / "table", [["Payee", "Cleared"], *rows]) == rows
    with pytest.raises(DataError, match="repeats the header in the column 'record_id'"):
        read_csv(
            tmp_path / "two",
            [["record_id", "notes", "label"], ["Record ID", "Notes of all", "Label"], *[["1", *row] for row in ROWS]],
        )


def test_marks_of_an_encoding_within_a_file_are_no_text(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text('\ufefftext,label\na,x\n\ufeff"b, c",y\n', encoding="utf-8")
    assert read_files([path]) == [{"text": "a", "label": "x"}, {"text": "b, c", "label": "y"}]


def test_cells_that_are_written_for_excel_to_be_text_are_that_text(tmp_path):
    (tmp_path / "table.csv").write_text('id,text,label\n="007","=""a""",x\n="",="a"&"b",="x\n')
    first, second = read_files([tmp_path / "table.csv"])
    assert first == {"id": "007", "text": "a", "label": "x"}
    assert second == {"id": "", "text": '="a"&"b"', "label": '="x'}


def test_the_end_of_a_file_of_dos_is_no_record(tmp_path):
    (tmp_path / "table.csv").write_bytes(b"text,label\r\na,x\r\n\x1a")
    assert read_files([tmp_path / "table.csv"]) == [{"text": "a", "label": "x"}]
    (tmp_path / "text.txt").write_bytes(b"an article\r\n\x1a")
    assert list(find_text(str(tmp_path / "text.txt"), {}).documents()) == ["an article"]


def test_empty_texts_of_the_only_column_are_records():
    assert list(table_rows([["text"], [""], ["a"]])) == [["text"], [""], ["a"]]


def test_rows_that_end_with_a_delimiter_unlike_the_header(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("text,label\na,x,\nb,y,\n")
    assert read_files([path]) == [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    for rows in ("a,x,\nb,y\n", "a,x\nb,y,\n", "a,x,\nb,y,1\n", "1,a,x\n2,b,y\n", "a,x,,\nb,y,\n"):
        path.write_text(f"text,label\n{rows}")
        with pytest.raises(DataError, match=r"does not have as many fields|in a column without a name"):
            read_files([path])


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_a_quote_that_joins_records_is_refused(tmp_path, delimiter):
    path = tmp_path / "table.csv"
    path.write_text('text,label\n"I like it,good\nnot me,bad\nwhat a "day",bad\n'.replace(",", delimiter))
    with pytest.raises(DataError, match=r"line 2 (is closed in line 4 only|cannot be read)|line 4 cannot be read"):
        read_files([path])
    path.write_text(
        'text,label\nno,bad\n"I like it,good\nnot me,bad\nwhat a day",bad\nyes,good\n'.replace(",", delimiter)
    )
    with pytest.raises(DataError, match=r"a quote in line 3 is closed in line 5 only.*HINT: quote fields that begin"):
        read_files([path])
    path.write_text(
        'label,text\nbad,no\ngood,"I like it\nbad,not me\nbad,what a day"\ngood,yes\n'.replace(",", delimiter)
    )
    with pytest.raises(DataError, match=r"a quote in line 3 is closed in line 5 only.*HINT: quote fields that begin"):
        read_files([path])
    path.write_text(f'text{delimiter}label\n"Dear all,\nmoney, please; thanks\nBob"{delimiter}bad\n')
    assert read_files([path]) == [{"text": "Dear all,\nmoney, please; thanks\nBob", "label": "bad"}]
