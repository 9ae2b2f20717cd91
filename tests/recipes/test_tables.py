# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: RUF001 (characters that look like others are what some of this is about)
"""People's own tables: every file is read as a library that is told everything reads it, or refused in one sentence."""

import bz2
import csv
import gzip
import io
import itertools
import json
import lzma
import tarfile
import zipfile

import pandas
import pyarrow
import pytest

from lightning_sagemaker.recipes._common.data import table_streams
from lightning_sagemaker.recipes._common.data.delimited import DELIMITERS
from lightning_sagemaker.recipes._common.data.encodings import UnknownEncodingError, decode
from lightning_sagemaker.recipes._common.data.table_streams import TableForm
from lightning_sagemaker.recipes._common.data.tables import DataError, find_files, read_files, read_tables

WESTERN = [
    ["Die Prüfung der Überweisung läuft; 5 €", "Miete"],
    ['Où est mon "crédit", s’il vous plaît?', "crédit"],
    ["¿Dónde está mi dinero?\nmañana | quizás", "transferencia"],
    ["Não recebi o cartão, as informações são más", "cartão"],
    ["tab\there, and 007 or NA", "1.0"],
]
ASCII = [
    ['plain "quoted" text, with | and ; and\ttab', "a"],
    ["line one\nline two", "b"],
    ["007", "NA"],
    ["  x ", "nan"],
]
LATIN_1 = [[text.replace("€", "EUR").replace("’", "'"), label] for text, label in WESTERN]
ENCODINGS = {
    "utf-8": WESTERN,
    "utf-8-sig": WESTERN,
    "utf-16": WESTERN,
    "utf-16-le": WESTERN,
    "utf-16-be": WESTERN,
    "utf-32": WESTERN,
    "latin-1": LATIN_1,
    "cp1252": WESTERN,
    "ascii": ASCII,
}
FOREIGN = {
    "cp1250": ["Zażółć gęślą jaźń", "Příliš žluťoučký kůň", "Árvíztűrő tükörfúrógép", "był mąż", "Ştefan şi ţara"],
    "iso-8859-2": ["Zażółć gęślą jaźń", "Příliš žluťoučký kůň", "był mąż", "Ştefan şi ţara"],
    "cp1251": ["Где мои деньги?", "я"],
    "koi8-r": ["Где мои деньги?", "я"],
    "cp1253": ["Πού είναι τα χρήματά μου"],
    "iso-8859-7": ["Καλημέρα κόσμε"],
    "cp1254": ["Ağ sıcak şifre", "İstanbul ışık"],
    "cp1255": ["שלום עולם"],
    "cp1256": ["مرحبا بالعالم"],
    "cp1257": ["šiandien ąžuolas ėjo"],
    "cp874": ["สวัสดี"],
    "shift_jis": ["口座の残高", "カード"],
    "iso2022_jp": ["口座の残高"],
    "gb18030": ["余额是多少"],
    "big5": ["餘額是多少"],
    "euc_kr": ["잔액이 얼마예요"],
    "mac-roman": ["Überweisung läuft größer", "Où est mon crédit", "mañana"],
    "cp850": ["Überweisung läuft größer", "Où est mon crédit", "mañana"],
    "iso-8859-15": ["kostet 5 € und œuvre"],
    "cp037": ["hello"],
}
"""Encodings that are not recognized, with text that only they (of those recognized) can mean."""


def zipped(files):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in files.items():
            file.writestr(name, data)
    return archive.getvalue()


PACKED = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pyarrow.compress(data, codec="zstd", asbytes=True),
    "zip": lambda data: zipped({"data/table.csv": data, "__MACOSX/data/._table.csv": b"a Mac's"}),
}


def written(rows, delimiter, quoting=csv.QUOTE_MINIMAL, newline="\n", header=("text", "label")):
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator=newline)
    writer.writerows([header, *rows])
    return file.getvalue()


def good():
    """Name -> bytes, encoding, delimiter of files that must be read."""
    newlines = {"unix": "\n", "windows": "\r\n", "mac": "\r"}
    quotings = {"minimal": csv.QUOTE_MINIMAL, "all": csv.QUOTE_ALL}
    kinds = [
        pair for pair in itertools.product(quotings, newlines) if pair != ("minimal", "mac")
    ]  # csv writes it wrongly
    for (encoding, rows), delimiter, (quoting, newline) in itertools.product(ENCODINGS.items(), DELIMITERS, kinds):
        text = written(rows, delimiter, quotings[quoting], newlines[newline])
        yield f"{encoding} {delimiter!r} {quoting} {newline}", text.encode(encoding), encoding, delimiter


def odd():
    """Name -> bytes, encoding, delimiter of files that are right in an unusual way."""
    for delimiter in DELIMITERS:
        text = written(ASCII, delimiter)
        long = [["x" * 1_000_000, "a"], ["word " * 200_000 + "\nend", "b"]]
        yield f"{delimiter!r} long field", written(long, delimiter).encode(), "utf-8", delimiter
        yield f"{delimiter!r} blank lines", text.replace("\n007", "\n\n\n007").encode() + b"\n\n", "utf-8", delimiter
        yield f"{delimiter!r} no last line end", text.rstrip("\n").encode(), "utf-8", delimiter
        wide = written([[*row, "3,5"] for row in ASCII], delimiter, header=("text", "label", "amount"))
        yield f"{delimiter!r} decimal comma", wide.encode(), "utf-8", delimiter
        index = written([["0", *row] for row in ASCII], delimiter, header=("", "text", "label"))
        yield f"{delimiter!r} column without a name", index.encode(), "utf-8", delimiter
        yield f"{delimiter!r} U+2028", text.replace("plain", "pl\u2028ain\x85").encode(), "utf-8", delimiter


def defective():
    """Name -> bytes of files that must be refused."""
    for delimiter in DELIMITERS:
        d = delimiter
        text = written(ASCII, d)
        yield f"{d!r} column twice", written([["x", "y", "z"]], d, header=("text", "label", "label")).encode()
        yield f"{d!r} columns but for case", written([["x", "y", "z"]], d, header=("text", "label", "Label")).encode()
        yield (
            f"{d!r} columns but for spaces",
            written([["x", "y", "z"]], d, header=("text", "label", " label")).encode(),
        )
        yield f"{d!r} repeated header", (text + text).encode()
        yield f"{d!r} field too many", (text + f"x{d}y{d}z\n").encode()
        yield f"{d!r} field too few", f"text{d}label{d}more\nx{d}y{d}z\nx{d}y\n".encode()
        yield f"{d!r} open quote", (text + f'"x{d}y\n').encode()
        yield f"{d!r} text after a quote", (text + f'"x" z{d}y\n').encode()
        yield f"{d!r} backslash before a quote", (text + f'"a \\"b\\" c"{d}y\n').encode()
        yield f"{d!r} NUL", (text + f"x\0{d}y\n").encode()
        yield f"{d!r} header only", f"text{d}label\n".encode()
        yield f"{d!r} damaged UTF-8", (text + f"Größe{d}ä\n").encode() + f"é{d}b\n".encode("latin-1")
        for encoding, texts in FOREIGN.items():
            rows = [[one, "a"] for one in texts] + [["plain", "b"]]
            yield f"{d!r} {encoding}", written(rows, d).encode(encoding)
        for name, pack in PACKED.items():
            yield f"{d!r} {name}, cut short", pack(text.encode() * 9)[:-9]
    yield "empty", b""
    yield "blank lines only", b"\n\n \n".replace(b" ", b"")
    yield "two delimiters", b"a,b;c\nd,e;f\n"
    yield "picture", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9
    yield "zip of two", zipped({"train.csv": b"text,label\nx,y\n", "test.csv": b"text,label\nx,y\n"})
    yield "zip of nothing", zipped({})
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as file:
        file.add(__file__, "train.csv")
    yield "tar", archive.getvalue()


def oracle(data, encoding, delimiter):
    """What pandas reads when it is told everything, and not to guess."""
    options = {"sep": delimiter, "encoding": encoding, "dtype": str, "keep_default_na": False, "na_values": []}
    table = pandas.read_csv(io.BytesIO(data), **options)
    return [["" if name.startswith("Unnamed") else name for name in table], *table.to_numpy().tolist()]


def found(path, form=None):
    records = read_files([path], form)
    return [list(records[0]), *(list(record.values()) for record in records)]


def test_tables_are_read_as_pandas_reads_them(tmp_path):
    cases = [*good(), *odd()]
    assert len(cases) > 200
    for number, (name, data, encoding, delimiter) in enumerate(cases):
        path = tmp_path / f"{number}{('.csv', '.tsv', '.txt')[number % 3]}"
        path.write_bytes(data)
        expected = oracle(data, encoding, delimiter)
        assert found(path) == expected, name
        assert found(path, TableForm(delimiter, encoding)) == expected, name


@pytest.mark.parametrize("kind", PACKED)
def test_packed_tables_are_what_is_in_them(tmp_path, kind):
    (tmp_path / "table.csv").write_text(written(WESTERN, ";"), encoding="utf-16")
    expected = found(tmp_path / "table.csv")
    packed = tmp_path / "folder" / f"table.csv.{kind}"
    packed.parent.mkdir()
    packed.write_bytes(PACKED[kind]((tmp_path / "table.csv").read_bytes()))
    assert find_files(str(packed.parent), "data.train") == [packed]
    assert found(packed) == expected
    assert found(packed.rename(tmp_path / "named otherwise")) == expected
    records = [{"text": "a", "label": 1}, {"text": "b", "label": None}]
    lines = "".join(json.dumps(record) + "\n" for record in records).encode()
    if kind == "zip":
        packed.write_bytes(zipped({"lines.jsonl": lines}))
        assert read_files([packed]) == records
    else:
        as_lines = tmp_path / f"lines.jsonl.{kind}"
        as_lines.write_bytes(PACKED[kind](lines))
        assert read_files([as_lines]) == records


def test_what_cannot_be_read_for_certain_is_refused_in_one_sentence(tmp_path):
    cases = list(defective())
    assert len(cases) > 100
    path = tmp_path / "table.csv"
    for name, data in cases:
        path.write_bytes(data)
        with pytest.raises(DataError) as error:
            pytest.fail(f"{name}: read as {str(read_files([path])[:2])[:300]}")
        message = str(error.value)
        assert message.startswith(str(path)), name
        assert message.count("HINT:") == 1, message
        assert "\n" not in message, message


def test_what_is_named_is_believed(tmp_path):
    path = tmp_path / "table.csv"
    for encoding, texts in FOREIGN.items():
        rows = [[one, "a"] for one in texts]
        path.write_bytes(written(rows, "^").encode(encoding))
        assert found(path, TableForm("^", encoding)) == [["text", "label"], *rows], encoding
    path.write_bytes("text,label\nä,b\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"is not utf-8: .*HINT: set data\.encoding"):
        read_files([path], TableForm(encoding="utf-8"))
    path.write_text("sep=;\ntext;label\nx,y;z\n")
    assert found(path) == [["text", "label"], ["x,y", "z"]]
    assert read_tables([path])[1][0] == f"{path}: delimiter ';', utf-8"
    path.write_text("text\tlabel\nx\ty\n")
    assert found(path, TableForm("tab")) == [["text", "label"], ["x", "y"]]


@pytest.mark.parametrize(
    "text", ["it´s £5 or €10 — “quoted”…", "5 m² and 3 °C, N° 5, 1º", "naïve café", "©2024 ACME®", "50 µm"]
)
def test_symbols_of_western_text_are_no_reason_to_refuse(text):
    assert decode(text.encode("cp1252")) == (text, "cp1252")


def test_unicode_is_never_refused():
    for text in itertools.chain.from_iterable(FOREIGN.values()):
        for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
            assert decode(text.encode(encoding))[0] == text
    with pytest.raises(UnknownEncodingError):
        decode(b"\x00\x01\x02" * 50)


ROWS = [{"text": "x\u2028y", "label": "ä"}, {"text": 'z "q"\n', "label": "b"}]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(
    "content",
    [
        json.dumps(ROWS, ensure_ascii=False),
        json.dumps({"data": ROWS}, indent=2),
        "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS),
        "\r\n\r\n".join(map(json.dumps, ROWS)) + "\r\n",
    ],
    ids=["array", "data", "lines", "windows lines"],
)
def test_json_in_all_its_forms(tmp_path, content, encoding):
    for suffix in (".json", ".jsonl", ".ndjson"):
        path = tmp_path / f"table{suffix}"
        path.write_bytes(content.encode(encoding))
        assert read_files([path]) == ROWS


@pytest.mark.parametrize("orient", ["columns", "index", "split", "records", "table", "list"])
def test_json_as_pandas_writes_it(tmp_path, monkeypatch, orient):
    table = pandas.DataFrame([{**row, "n": None} for row in ROWS], index=[3, 7])
    text = json.dumps(table.to_dict("list")) if orient == "list" else table.to_json(orient=orient)
    (tmp_path / "table.json").write_text(text)
    index = [{"index": 3}, {"index": 7}] if orient == "table" else [{}, {}]
    expected = [{**number, **row, "n": None} for number, row in zip(index, ROWS, strict=True)]
    assert read_files([tmp_path / "table.json"]) == expected
    if orient in ("columns", "index", "list"):
        monkeypatch.setattr(table_streams, "_WHOLE", 0)
        with pytest.raises(
            DataError, match=r"it is large, and an object of .*; it is not a list of records\. HINT: give"
        ):
            read_files([tmp_path / "table.json"])
    (tmp_path / "table.json").write_text('{"text": ["a", "b"], "label": "x"}')
    assert read_files([tmp_path / "table.json"]) == [{"text": ["a", "b"], "label": "x"}]


def test_json_by_id_is_read_where_ids_are_more_than_columns(tmp_path):
    """As databases of documents export it, and pandas tables whose index has names, by row and by column."""
    records = [{"text": text, "label": text.upper()} for text in "abc"]
    table = pandas.DataFrame(records, index=["-Na", "-Nb", "-Nc"])
    path = tmp_path / "table.json"
    path.write_text(table.to_json(orient="index"))
    named = [{"id": name, **record} for name, record in zip(table.index, records, strict=True)]
    assert read_files([path]) == named
    path.write_text(table.to_json(orient="columns"))
    assert read_files([path]) == records
    path.write_text(json.dumps({"x": records[0], "y": {"text": "b"}, "z": {"text": "c", "label": "C"}}))
    assert [one["label"] for one in read_files([path])] == ["A", None, "C"]
    path.write_text(json.dumps({"columns": [{"name": "text"}], "data": [["a"]]}))
    with pytest.raises(DataError, match="is not a list of records"):
        read_files([path])


def test_json_with_gaps_and_defects(tmp_path):
    path = tmp_path / "table.json"
    path.write_text('[{"text": "x"}, {"label": "y", "text": NaN}]')
    assert read_files([path]) == [{"text": "x", "label": None}, {"text": None, "label": "y"}]
    for content in (
        '[{"a": 1, "a": 2}]',
        '[{"a": 1}, {"A": 2}]',
        "[1, 2]",
        "{",
        '{"a": 1}\n{"a"',
        "[]",
        '[{"a": 1}] x',
    ):
        path.write_text(content)
        with pytest.raises(DataError, match="HINT"):
            read_files([path])


def test_nameless_columns_at_the_end_as_spreadsheets_write_them_are_left_out_while_empty(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("text,label,,\nx,y,,\nz,y,,\n")
    assert read_files([path]) == [{"text": "x", "label": "y"}, {"text": "z", "label": "y"}]
    path.write_text("text,label,,\nx,y,,\nz,y,,1\n")
    with pytest.raises(
        DataError, match=r"record 2 has '1' in a column without a name\. HINT: .*; or name or delete it"
    ):
        read_files([path])
    for header in (",,", "text,,,label"):  # which is which, nobody can know
        path.write_text(f"{header}\n,,,\n")
        with pytest.raises(DataError, match="HINT"):
            read_files([path])


def test_parquet_by_its_content_and_excel_with_one_sheet(tmp_path):
    path = tmp_path / "table.csv"
    pandas.DataFrame(ROWS).to_parquet(path)
    assert read_files([path]) == ROWS
    path.write_bytes(workbook({"Sheet1": [["text", "label"], ["x & y", "1"], [7, 2.0], ["z", 2.5]], "Sheet2": []}))
    expected = [{"text": "x & y", "label": "1"}, {"text": "7", "label": "2"}, {"text": "z", "label": "2.5"}]
    assert read_files([path]) == expected
    path.write_bytes(workbook({"A": [["text", "label"], ["x", "y"]], "B": [["more"]]}))
    with pytest.raises(DataError, match=r"sheets A, B\. HINT: keep one"):
        read_files([path])


def test_a_sheet_may_begin_in_any_column(tmp_path):
    path = tmp_path / "table.xlsx"
    path.write_bytes(workbook({"Sheet": [["", "", "text"], ["", "", "a"], ["", "", "b"]]}))
    assert read_files([path]) == [{"text": "a"}, {"text": "b"}]


def test_hidden_sheets_are_not_read_and_merged_cells_hold_for_each_row(tmp_path):
    path = tmp_path / "table.xlsx"
    rows = [["text", "label"], ["a", "x"], ["b"], ["c", "y"]]
    path.write_bytes(workbook({"Codes": [["code"], ["x"]], "Sheet": rows}, hidden=["Codes"], merged="B2:B3"))
    assert [record["label"] for record in read_files([path])] == ["x", "x", "y"]


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "python_calamine", None)
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    path = tmp_path / "table.xlsx"
    path.write_bytes(workbook({"A": [["text"], ["x"]]}))
    with pytest.raises(DataError, match=r"python-calamine.*HINT: pip install 'lightning-sagemaker\[tables\]'"):
        read_files([path])


def test_folders_without_hidden_copies_and_with_equal_columns(tmp_path):
    for name in ("a.csv", "sub/b.CSV", ".hidden/c.csv", "__MACOSX/a.csv", "._a.csv", "~$a.xlsx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text,label\nx,y\n")
    files = find_files(str(tmp_path), "data.train")
    assert [path.name for path in files] == ["a.csv", "b.CSV"]
    assert len(read_files(files)) == 2
    (tmp_path / "a.csv").write_text("text;kind\nx;y\n")
    with pytest.raises(DataError, match=r"b\.CSV has the columns text, label, but .*a\.csv has text, kind\. HINT"):
        read_files(files)


def workbook(sheets, hidden=(), merged=""):
    """An Excel workbook, as small as one can be; ``merged``: cells that are merged in each sheet, such as ``B2:B3``."""
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    relation = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    numbers = range(1, len(sheets) + 1)

    def cell(row, column, value):
        place = f"{'ABC'[column]}{row}"
        if isinstance(value, str):
            escaped = value.replace("&", "&amp;")
            return f'<c r="{place}" t="inlineStr"><is><t>{escaped}</t></is></c>'
        return f'<c r="{place}"><v>{value}</v></c>'

    def sheet(rows):
        lines = (
            f'<row r="{number}">{"".join(cell(number, place, value) for place, value in enumerate(row))}</row>'
            for number, row in enumerate(rows, start=1)
        )
        cells = f'<mergeCells count="1"><mergeCell ref="{merged}"/></mergeCells>' if merged else ""
        return f'<worksheet xmlns="{main}"><sheetData>{"".join(lines)}</sheetData>{cells}</worksheet>'

    def entry(number, name):
        state = ' state="hidden"' if name in hidden else ""
        return f'<sheet name="{name}" sheetId="{number}"{state} r:id="r{number}"/>'

    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{kind}.sheet.main+xml"/>'
        + "".join(
            f'<Override PartName="/xl/worksheets/sheet{n}.xml" ContentType="{kind}.worksheet+xml"/>' for n in numbers
        )
        + "</Types>",
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1"'
        f' Type="{relation}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{relation}"><sheets>'
        + "".join(map(entry, numbers, sheets))
        + "</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships">'
        + "".join(
            f'<Relationship Id="r{n}" Type="{relation}/worksheet" Target="worksheets/sheet{n}.xml"/>' for n in numbers
        )
        + "</Relationships>",
        **{f"xl/worksheets/sheet{n}.xml": sheet(rows) for n, rows in zip(numbers, sheets.values(), strict=True)},
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, text in parts.items():
            file.writestr(name, '<?xml version="1.0" encoding="UTF-8"?>' + text)
    return content.getvalue()
