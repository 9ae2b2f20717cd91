# SPDX-License-Identifier: Apache-2.0
"""Tables separated by tabs in which quotes are text, as benchmarks are published, and those in which they are not."""

import csv

import pytest

from lightning_sagemaker.recipes._common.data import table_streams
from lightning_sagemaker.recipes._common.data.tables import DataError, read_tables

PUBLISHED = {
    "a quote within": '0\t"Hi" he said\the spoke\n1\ta\tb\n2\tsay "no"\t"no\n',
    "one that is not closed": '0\t"a masterpiece\tgood\n1\tit is\tbad\n',
    "one that is closed in another line": '0\t"a masterpiece\tgood\n1\tit is"\tgood\n2\tx\tgood\n',
}


@pytest.mark.parametrize("kind", PUBLISHED)
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "streamed"])
def test_quotes_that_are_around_no_fields_are_text(tmp_path, monkeypatch, kind, whole):
    monkeypatch.setattr(table_streams, "_WHOLE", 1 << 26 if whole else 1)
    text = f"id\tsentence\tlabel\n{PUBLISHED[kind]}"
    (tmp_path / "train.tsv").write_text(text + ("" if whole else "9\tlast\tgood\n"))
    records, [how] = read_tables([tmp_path / "train.tsv"])
    plain = csv.reader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    assert [list(record.values()) for record in records][: text.count("\n") - 1] == list(plain)[1:]
    assert "quotes are text" in how


@pytest.mark.parametrize(
    ("rows", "expected"),
    [('"a\tb"\tx\n', "a\tb"), ('"a ""b"""\tx\n', 'a "b"'), ('"a"\tx\n', "a"), ('a "b" c\tx\n', 'a "b" c')],
)
def test_quotes_around_fields_are_not(tmp_path, rows, expected):
    (tmp_path / "train.tsv").write_text(f"text\tlabel\n{rows}")
    records, [how] = read_tables([tmp_path / "train.tsv"])
    assert [record["text"] for record in records] == [expected]
    assert "quotes are text" not in how


@pytest.mark.parametrize("text", ['"text"\t"label"\n"a \\"b\\" c"\t"x"\n', 'text\tlabel\n"a"b\tx\n"c ""d"""\tx\n'])
def test_quotes_of_both_kinds_are_refused(tmp_path, text):
    (tmp_path / "train.tsv").write_text(text)
    with pytest.raises(DataError, match=r"cannot be read with the delimiter.* HINT: quote fields"):
        read_tables([tmp_path / "train.tsv"])
