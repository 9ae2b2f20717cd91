# SPDX-License-Identifier: Apache-2.0
"""Articles of people's own corpora: every kind of file gives what the library of its kind reads, or one sentence."""

import bz2
import csv
import gzip
import json
import logging
import lzma
import tracemalloc

import pandas
import pyarrow
import pyarrow.parquet
import pytest

from lightning_sagemaker.recipes._common.data import table_streams
from lightning_sagemaker.recipes.albert_mlm.articles import TextSourceError
from lightning_sagemaker.recipes.albert_mlm.text import find_text

ARTICLES = [
    'Anarchism is a political philosophy, with {braces} and "quotes".',
    "Größe, naïve café: über alles, 5 € ja",
    "A second\u2028paragraph\x85 of one article",
    "[1, 2, 3] is a list; <doc> is none",
]
RECORDS = [{"id": number, "text": text, "n": None} for number, text in enumerate(ARTICLES)]
TEXT = "".join(f"{article}\n" for article in ARTICLES)
JSON_LINES = "".join(json.dumps(record, ensure_ascii=number % 2 == 0) + "\n" for number, record in enumerate(RECORDS))
EXTRACTED = "".join(
    f'<doc id="{n}" url="u?curid={n}" title="T {n}">\nT {n}\n\n{text}\n</doc>\n' for n, text in enumerate(ARTICLES)
)


def documents(path, **options):
    return list(find_text(str(path), {}, **options).documents())


def zstd(data):
    return pyarrow.compress(data, codec="zstd", asbytes=True)


def files():
    """Name -> bytes of files that all hold the same articles."""
    yield "articles.txt", TEXT.encode()
    yield "bom.txt", TEXT.encode("utf-8-sig")
    yield "windows.txt", TEXT.replace("\n", "\r\n").encode()
    yield "blank.txt", ("\n\n" + TEXT.replace("\n", "\n \n")).encode()
    yield "no-end.txt", TEXT.rstrip("\n").encode()
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        yield f"{encoding}.txt", TEXT.encode(encoding)
    yield "lines.jsonl", JSON_LINES.encode()
    yield "lines.ndjson", JSON_LINES.encode("utf-8-sig")
    yield "lines-as.json", JSON_LINES.encode()
    yield "lines-as.txt", JSON_LINES.encode()
    yield "lines-as-nothing", ("\n" + JSON_LINES).encode()
    yield "array.json", json.dumps(RECORDS, indent=1).encode()
    yield "object.json", json.dumps({"version": [1], "data": RECORDS, "n": 1}, indent=1).encode()
    yield "one-line.json", json.dumps({"data": RECORDS}).encode()
    yield "utf-16.json", json.dumps(RECORDS).encode("utf-16")
    yield "wiki_00", EXTRACTED.encode()
    yield "extracted.txt", EXTRACTED.encode()
    frame = pandas.DataFrame({"text": ARTICLES, "id": range(len(ARTICLES))})
    yield "table.csv", frame.to_csv(index=False).encode()
    yield "table.tsv", frame.to_csv(index=False, sep="\t").encode()
    yield "excel.csv", ("sep=;\r\n" + frame.to_csv(index=False, sep=";")).encode("utf-8-sig")
    yield "quoted.csv", frame.to_csv(index=False, quoting=csv.QUOTE_ALL, lineterminator="\r\n").encode("utf-16")
    yield "table.csv.gz", gzip.compress(frame.to_csv(index=False).encode())
    yield "table.parquet", frame.to_parquet(index=False)
    yield "only.parquet", frame[["text"]].rename(columns={"text": "content"}).to_parquet(index=False)
    for suffix, pack in {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}.items():
        yield f"articles.txt.{suffix}", pack(TEXT.encode())
        yield f"c4-train.00000-of-01024.json.{suffix}", pack(JSON_LINES.encode())
        yield f"wiki_01.{suffix}", pack(EXTRACTED.encode())


@pytest.mark.parametrize("whole", [table_streams._WHOLE, 0], ids=["whole", "as a stream"])
def test_every_kind_of_file_gives_its_articles(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(table_streams, "_WHOLE", whole)
    kinds = dict(files())
    assert len(kinds) > 30
    for name, data in kinds.items():
        path = tmp_path / name
        path.write_bytes(data)
        assert documents(path) == ARTICLES, name
        assert documents(path) == ARTICLES, f"{name}, read again"


def test_columns_in_json_are_a_table(tmp_path):
    pandas.DataFrame({"id": range(len(ARTICLES)), "text": ARTICLES}).to_json(tmp_path / "table.json")
    assert documents(tmp_path / "table.json") == ARTICLES


def test_records_are_those_that_datasets_reads(tmp_path):
    from datasets import load_dataset

    for kind, name, data in [
        ("json", "a.jsonl", JSON_LINES.encode()),
        ("parquet", "a.parquet", pandas.DataFrame(RECORDS).to_parquet()),
        ("csv", "a.csv", pandas.DataFrame(RECORDS).to_csv(index=False).encode()),
    ]:
        (tmp_path / name).write_bytes(data)
        expected = load_dataset(kind, data_files=str(tmp_path / name), cache_dir=str(tmp_path / "cache"), split="train")
        assert documents(tmp_path / name) == list(expected["text"])


def test_western_text_is_recognised_and_said(tmp_path, caplog):
    text = "Die Prüfung der Überweisung läuft\nOù est mon crédit\n"
    (tmp_path / "a.txt").write_bytes(text.encode("cp1252"))
    with caplog.at_level(logging.INFO):
        assert documents(tmp_path / "a.txt") == text.splitlines()
        documents(tmp_path / "a.txt")
    assert caplog.text.count(" as cp1252") == 1


def test_a_folder_is_its_texts_or_its_tables(tmp_path, caplog):
    made = dict(files())
    for name in ("lines.jsonl", "table.csv", ".hidden/copy.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(made[name.replace(".hidden/copy", "lines")])
    assert documents(tmp_path) == ARTICLES * 2
    for name in ("AA/wiki_00", "AA/wiki_01.bz2", "articles.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(made[name.removeprefix("AA/")])
    assert documents(tmp_path) == ARTICLES * 3
    assert (
        f"{tmp_path}: reading only its 3 text files, not {tmp_path / 'lines.jsonl'}, {tmp_path / 'table.csv'}"
        in caplog.text
    )


def test_what_was_read_otherwise_is_prepared_anew(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(dict(files())["lines.jsonl"])
    (tmp_path / "a.txt").write_text(TEXT)
    name, text = str(tmp_path / "a.jsonl"), str(tmp_path / "a.txt")
    assert find_text(name, {}).fingerprint() != find_text(name, {}, text_column="other").fingerprint()
    assert list(find_text(text, {}).fingerprint()) == ["files"]  # as ever: caches of plain text stay
    assert find_text(text, {}).size() == len(TEXT.encode())
    assert find_text(name, {}).size() == 0
    assert find_text(name, {}).characters() == len(JSON_LINES.encode())


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", b'{"body": "x", "id": 1}\n', "no column 'text'.*text_column to one of body, id"),
        ("a.jsonl", b'{"text": {"a": 1}, "id": 1}\n', "of record 1 is not text but dict"),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', "line 2 is not JSON"),
        ("a.jsonl", b'{"text": "x"}\n[1]\n', "line 2 is not an object"),
        ("a.json", b'{"text": ["x", \n', "cannot be read"),
        ("a.csv", b"id,body\n1,x\n", "no column 'text'.*id, body"),
        ("a.csv", "text\nZażółć gęślą jaźń\n".encode("cp1250"), "not UTF-8.*save it as UTF-8"),
        ("a.csv", b"text,b;c\nd,e;f\n", "may be separated by.*with commas"),
        ("a.parquet", pandas.DataFrame(RECORDS)[["id", "n"]].to_parquet(), "no column 'text'.*id, n"),
        ("a.parquet", pandas.DataFrame(RECORDS).to_parquet()[:-9], "cannot be read"),
        ("a.txt", "Zażółć gęślą jaźń\n".encode("cp1250"), "is not valid UTF-8"),
        ("a.txt", TEXT.encode() * 40_000 + b"gr\xf6\xdfer\n", "is not valid UTF-8 throughout"),
        ("a.txt", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9, "zero bytes, so it is not text"),
        ("a.txt.gz", gzip.compress(TEXT.encode() * 99)[:-20], "damaged or incomplete"),
        ("a.txt.zst", zstd(TEXT.encode() * 9999)[:-20], "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TextSourceError, match=said) as error:
        print(documents(tmp_path / name)[-2:])
    assert str(error.value).count("HINT:") == 1
    assert str(tmp_path / name) in str(error.value)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.json", '[{"text": "x"}, {"text": "y"', "cannot be read"),
        ("a.json", '[{"text": "x"} {"text": "y"}]', "',' was expected"),
        ("a.json", '[{"text": "x"},]', "cannot be read"),
        ("a.json", '[{"text": "x"}] 1', "more after the end"),
        ("a.json", "[1]", "not a list of records"),
        ("a.json", '[{"text": "x", "text": "y"}]', "the key 'text' twice"),
        ("a.json", '{"text": {"a": 1}}', "is not text but dict"),
        ("a.csv", 'text,n\nx,1\n"y', "cannot be read with the delimiter"),
        ("a.csv", "text,n\nx,1\ny,2,3\n", "record 2 does not have as many fields"),
        ("a.csv", "text,n\nx,1\ntext,n\n", "record 2 repeats the header"),
        ("a.csv", "text,n\nx,\0\n", "zero bytes"),
        ("a.csv", "text,b;c\nd,e;f\ng,h;i\n", "may be separated by"),
        ("a.csv", "a,b\nx,1\n", "no column 'text'.*a, b"),
    ],
)
def test_what_is_wrong_in_a_stream_is_one_sentence(tmp_path, monkeypatch, name, data, said):
    monkeypatch.setattr(table_streams, "_WHOLE", 0)
    (tmp_path / name).write_text(data)
    with pytest.raises(TextSourceError, match=said) as error:
        documents(tmp_path / name)
    assert "HINT: " in str(error.value)


def test_a_value_may_end_anywhere_in_what_is_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(table_streams, "_WHOLE", 0)
    records = [{"text": "x" * length, "n": 123456} for length in range(60)]
    (tmp_path / "a.json").write_text(json.dumps({"version": 123, "data": records}, indent=1))
    for size in range(1, 40):
        monkeypatch.setattr("lightning_sagemaker.recipes._common.data.json_records._AT_ONCE", size)
        assert documents(tmp_path / "a.json") == [record["text"] for record in records[1:]]


@pytest.mark.parametrize("name", ["a.csv", "a.json"])
def test_a_stream_takes_no_more_memory_than_its_buffers(tmp_path, monkeypatch, name):
    monkeypatch.setattr(table_streams, "_WHOLE", 0)
    frame = pandas.DataFrame({"text": ["word " * 1000] * 2400, "n": 1})  # 12 MB
    frame.to_csv(tmp_path / name, index=False) if name == "a.csv" else frame.to_json(tmp_path / name, orient="records")
    source = find_text(str(tmp_path / name), {})
    tracemalloc.start()
    try:
        assert sum(1 for _ in source.documents()) == 2400
        assert tracemalloc.get_traced_memory()[1] < 8e6
    finally:
        tracemalloc.stop()


def test_records_of_other_kinds_and_first_texts_are_not_taken_for_something_else(tmp_path, monkeypatch):
    path = tmp_path / "articles.jsonl"
    path.write_text('{"text": "an article"}\n{"error": "time is over"}\n')
    with pytest.raises(TextSourceError, match=r"record 2 has no 'text', but error\. HINT: all records need"):
        documents(path)
    for name, whole in (("articles.jsonl", 1 << 26), ("articles.ndjson", 0)):
        path = tmp_path / name
        path.write_text('{"title": "no article"}\n{"title": "a title", "text": "an article"}\n')
        monkeypatch.setattr(table_streams, "_WHOLE", whole)
        with pytest.raises(
            TextSourceError, match=r"record 2 has 'text', which the first has not, but only 'title'\. HINT"
        ):
            documents(path)
    path = tmp_path / "articles.csv"
    path.write_text('"The first article of four words."\n"The second one."\n')
    with pytest.raises(TextSourceError, match=r"no column 'text'.*the first row of a table must be their names"):
        documents(path)
    path.write_text("my articles\nThe first.\n")
    assert documents(path) == ["The first."]


def test_files_of_unknown_kinds_beside_the_text_are_named(tmp_path, caplog):
    for name in ("a.txt", "b.md", "c.html"):
        (tmp_path / name).write_text("An article.\n")
    with caplog.at_level(logging.WARNING):
        assert documents(tmp_path) == ["An article."]
    assert f"reading only its 1 text files, not {tmp_path / 'b.md'}, {tmp_path / 'c.html'}" in caplog.text


def test_files_about_a_corpus_are_not_part_of_it(tmp_path, caplog):
    for name in ("corpus.txt", "vocab.txt", "LICENSE.txt", "ReadMe.txt"):
        (tmp_path / name).write_text(f"{name}\n")
    assert documents(tmp_path) == ["corpus.txt"]
    assert f"reading only its 1 text files, not {tmp_path / 'LICENSE.txt'}, {tmp_path / 'ReadMe.txt'}" in caplog.text
    (tmp_path / "corpus.txt").unlink()
    assert documents(tmp_path) == ["LICENSE.txt", "ReadMe.txt", "vocab.txt"]
    assert documents(tmp_path / "vocab.txt") == ["vocab.txt"]


def test_marks_of_an_encoding_between_articles_are_no_text_and_nul_is_refused(tmp_path):
    path = tmp_path / "articles.txt"
    path.write_text("\ufeffThe first.\n\ufeffThe second.\n", encoding="utf-8")
    assert documents(path) == ["The first.", "The second."]
    path.write_text("An article.\n" * 1000 + "\0\0\n")
    with pytest.raises(TextSourceError, match=r"NUL characters, so it is not text\. HINT"):
        documents(path)


def test_a_path_that_is_misspelt_is_one_sentence(monkeypatch):
    """It is then the name of a dataset, which the hub does not have, or cannot be asked for."""
    datasets = pytest.importorskip("datasets")

    def refused(*_, **__):
        raise ConnectionError("Couldn't reach 'artciles' on the Hub\nand more")

    monkeypatch.setattr(datasets, "load_dataset", refused)
    with pytest.raises(TextSourceError, match=r"'artciles' is not a local file, and no .*on the Hub\). HINT: check"):
        find_text("artciles", {}).documents()
