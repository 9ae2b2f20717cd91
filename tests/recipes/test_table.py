# SPDX-License-Identifier: Apache-2.0
"""Records on disk are those of a list; tables that are streamed are those that are read whole."""

import csv
import datetime
import decimal
import gzip
import itertools
import json
import os
import random
import tracemalloc

import numpy as np
import pandas
import pytest

from lightning_sagemaker.recipes._common.data import table_streams
from lightning_sagemaker.recipes._common.data.record_lines import RecordLines, write_record_lines
from lightning_sagemaker.recipes._common.data.table import Mapped, Table, TableWriter
from lightning_sagemaker.recipes._common.data.table_streams import TableForm
from lightning_sagemaker.recipes._common.data.tables import DataError, read_files, read_tables

VALUES = ["a", "ä\n\x00", 1, -2.5, None, True, [1, "x"], {"k": [None]}, b"\xff", datetime.date(2024, 2, 29)]


def records(count, chance):
    return [{"id": n, "text": chance.choice(VALUES), "label": str(chance.randrange(5))} for n in range(count)]


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 2000])
@pytest.mark.parametrize("seed", range(3))
def test_a_table_is_a_list_of_its_records(count, seed):
    chance = random.Random(f"{count} {seed}")
    expected = records(count, chance)
    table = Table.of(iter(expected))
    for _ in range(6):
        assert len(table) == len(expected)
        assert list(table) == expected
        assert list(zip(table, table, strict=True)) == list(zip(expected, expected, strict=True)), "two at once"
        for place in chance.sample(range(-len(expected), len(expected)), min(20, len(expected))):
            assert table[place] == expected[place]
        with pytest.raises(IndexError):
            table[len(expected)]
        operation = chance.choice(["take", "slice", "replace"])
        if operation == "take":
            places = chance.choices(range(len(expected)), k=len(expected)) if expected else []
            table, expected = table.take(np.array(places, dtype=np.int64)), [expected[place] for place in places]
        elif operation == "slice":
            part = slice(chance.choice([None, 3, -300]), chance.choice([None, 1500, -2]), chance.choice([None, 2, -1]))
            table, expected = table[part], expected[part]
        else:
            column = chance.choice(["label", "text"])
            values = [chance.choice(VALUES) for _ in expected]
            table = table.replace(column, values)
            expected = [{**record, column: value} for record, value in zip(expected, values, strict=True)]


def test_columns_that_come_later_are_none_before():
    writer = TableWriter()
    assert writer.extend([{"a": 1}, {"b": 2, "a": 3}]) == ["a", "b"]
    assert writer.extend({"c": n} for n in range(600)) == ["c"]
    table = writer.finish()
    assert table.columns == ("a", "b", "c")
    assert table[0] == {"a": 1, "b": None, "c": None}
    assert table[1] == {"a": 3, "b": 2, "c": None}
    assert table[601] == {"a": None, "b": None, "c": 599}
    assert all(list(record) == ["a", "b", "c"] for record in table)


def test_the_file_has_no_name_and_is_closed_with_the_table(tmp_path):
    before = set(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else set()
    table = Table.of(({"n": n} for n in range(10**5)), tmp_path)
    part = table[5:7]
    del table
    assert list(part) == [{"n": 5}, {"n": 6}]
    assert list(tmp_path.iterdir()) == []
    del part
    if before:
        assert set(os.listdir("/proc/self/fd")) <= before


def test_mapped_is_map_over_what_the_sequence_holds():
    found = Mapped(str, [1, 2, 3])
    assert list(found) == ["1", "2", "3"] == list(found)
    assert found[1] == "2"
    assert list(found[1:]) == ["2", "3"]
    assert len(found) == 3


def test_record_lines_hold_what_was_read(tmp_path):
    expected = [{"text": "ä\u2028\n", "n": [1, None]}, {"text": "", "n": {"k": 2}}]
    write_record_lines(tmp_path / "r.jsonl", [*expected, {"d": decimal.Decimal("1.50")}])
    lines = RecordLines(tmp_path / "r.jsonl")
    assert list(lines) == [*expected, {"d": "1.50"}]
    assert lines[-1] == {"d": "1.50"}
    assert lines[:2] == expected
    write_record_lines(tmp_path / "none.jsonl", [])
    assert len(RecordLines(tmp_path / "none.jsonl")) == 0


ROWS = [
    {"text": f'tab\t, comma; "quote" ä {n}' + "\nline" * (n % 3), "label": random.Random(n).choice(["NA", "007", "€"])}
    for n in range(700)
]


def kinds():
    """Name -> bytes, and how they are read."""
    for separator, encoding, end in itertools.product(
        ",;\t|", ["utf-8", "utf-8-sig", "utf-16", "cp1252"], ["\n", "\r\n"]
    ):
        text = pandas.DataFrame(ROWS).to_csv(index=False, sep=separator, quoting=csv.QUOTE_ALL, lineterminator=end)
        yield f"{ord(separator)}-{encoding}-{len(end)}.csv", text.encode(encoding), None
    text = pandas.DataFrame(ROWS).to_csv(index=False, quoting=csv.QUOTE_ALL)
    yield "packed.csv.gz", gzip.compress(text.encode()), None
    yield "excel.csv", ("sep=;\r\n" + text.replace('","', '";"')).encode("utf-8-sig"), None
    yield "named.csv", text.replace('","', '"^"').encode("cp1250"), TableForm("^", "cp1250")
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        yield f"array-{encoding}.json", json.dumps(ROWS, indent=1).encode(encoding), None
        yield f"line-{encoding}.json", json.dumps(ROWS).encode(encoding), None
        yield f"data-{encoding}.json", json.dumps({"version": 1, "data": ROWS}).encode(encoding), None
        lines = "\n".join(json.dumps(row) for row in ROWS)
        yield f"lines-{encoding}.jsonl", lines.encode(encoding), None
        yield f"lines-{encoding}.json", f"{lines}\n\n".encode(encoding), None
    yield "one.json", json.dumps(ROWS[0]).encode(), None
    yield "gaps.jsonl", b'{"text": "x", "label": NaN}\n{"label": "y", "more": 1}', None
    yield "a.parquet", pandas.DataFrame(ROWS).to_parquet(index=False), None


def test_what_is_streamed_is_what_is_read_whole(tmp_path, monkeypatch):
    for name, data, form in kinds():
        (tmp_path / name).write_bytes(data)
        monkeypatch.setattr(table_streams, "_WHOLE", 1 << 26)
        expected, read = read_tables([tmp_path / name], form)
        monkeypatch.setattr(table_streams, "_WHOLE", 0)
        table, streamed = read_tables([tmp_path / name], form, tmp_path)
        assert list(table) == list(expected), name
        if len(table) == len(ROWS):
            assert list(table) == ROWS, name
        assert streamed == read, name
    assert len(list(kinds())) > 45


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "text,label\n" + "x,y\n" * 9 + "z\n", "record 10 does not have as many fields"),
        (
            "a.csv",
            "Account 12\ntext,label\nx,y\n",
            "record 1 .* 2 instead of 1. HINT: delete the lines above the header",
        ),
        (
            "a.csv",
            "Account 12,,\ntext,label,n\nx,y,z\n",
            "column without a name. HINT: delete the lines above the header",
        ),
        (
            "a.csv",
            ",,,\ntext,label,n,m\nx,y,z,m\n",
            "several columns have no name in its first line. HINT: delete the lines",
        ),
        ("a.csv", "text,label\nx,y\0\n", "NUL|zero bytes"),
        ("a.csv", "text,Text\nx,y\n", "columns 'text' and 'Text'"),
        ("a.csv", "text,label\n", "has no records"),
        ("a.csv", "", "has no records"),
        ("a.csv", b"text,label\n" + b"x,y\n" * 300_000 + b"\xe4,b\n", r"utf-8.*HINT: set data\.encoding"),
        ("a.jsonl", '{"text": 1}\n{"text": \n', "line 2 is not JSON"),
        ("a.jsonl", '{"text": 1}\n[2]\n', "line 2 is not an object"),
        ("a.jsonl", '{"text": 1, "text": 2}\n', "has the key 'text' twice"),
        ("a.jsonl", '{"text": 1}\n{"Text": 2}\n', "columns 'text' and 'Text'"),
        ("a.json", '[{"text": 1}', "cannot be read"),
        ("a.json", "[1]", "not a list of records"),
        ("a.parquet", "text\n1\n", None),
        ("a.csv", "%PDF-1.4", "a PDF document"),
    ],
)
def test_what_is_wrong_in_a_stream_is_one_sentence(tmp_path, monkeypatch, name, content, said):
    monkeypatch.setattr(table_streams, "_WHOLE", 0)
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    if said is None:  # a table in spite of its name
        assert read_files([tmp_path / name]) == [{"text": "1"}]
        return
    with pytest.raises(DataError, match=said) as error:
        read_files([tmp_path / name])
    assert str(error.value).count("HINT: ") == 1


@pytest.mark.parametrize(
    ("name", "count"), [("a.csv", 4000), ("a.jsonl", 40_000), ("a.json", 4000), ("a.parquet", 4000)]
)
def test_a_table_takes_little_memory_for_each_record(tmp_path, monkeypatch, name, count):
    monkeypatch.setattr(table_streams, "_WHOLE", 0)
    frame = pandas.DataFrame(
        {"text": [f"CARD PAYMENT {n} TO SHOP" for n in range(count)], "label": "x", "id": range(count)}
    )
    if name == "a.parquet":
        frame.to_parquet(tmp_path / name, index=False)
    elif name == "a.csv":
        frame.to_csv(tmp_path / name, index=False)
    else:
        frame.to_json(tmp_path / name, orient="records", lines=name == "a.jsonl")
    del frame
    read_tables([tmp_path / name])  # what is imported for it
    tracemalloc.start()
    try:
        table, _ = read_tables([tmp_path / name])
        part = table.take(np.arange(0, count, 2))
        assert sum(record["text"].endswith("SHOP") for record in part) == count // 2
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 20 * count + 5e5, "8 bytes for each record and for each of the taken half, and a block"
    assert most < 20 * count + 10e6, "and the buffers"
