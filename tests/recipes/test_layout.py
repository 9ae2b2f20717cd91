# SPDX-License-Identifier: Apache-2.0
"""Text files of other layouts than an article on each line: refused where lines are no text, else said."""

import subprocess

import pytest

from lightning_sagemaker.recipes.albert_mlm.articles import TextSourceError
from lightning_sagemaker.recipes.albert_mlm.layout import foreign_text, layout_remark
from lightning_sagemaker.recipes.albert_mlm.text import find_text

LINES = ["The old man went down to the river.", "It was late in the year.", "Nobody came by that road."]
SUBTITLES = "".join(f"{n}\n00:00:{n:02d},500 --> 00:00:{n + 1:02d},000\nHello\n\n" for n in range(1, 20))
TREEBANK = "# sent_id = 1\n# text = The AP\n1\tThe\tthe\tDET\t_\n2\tAP\tAP\tPROPN\t_\n\n" * 9
TABLES = {
    "sentences": "".join(f"{n}\t{LINES[n % 3]}\n" for n in range(30)),
    "pairs": "".join(f"Go {n}.\tGeh {n}.\tCC-BY 2.0\n" for n in range(30)),
    "treebank": TREEBANK,
    "treebank.conllu": TREEBANK.replace("\n", "\r\n"),
}
MARKUP = {
    "comment.txt": "<!-- saved from url=(0014)about:internet -->\n<html><body>words</body></html>\n",
    "fragment.txt": "<head><title>words</title></head>\n<body><p>words</p></body>\n",
    "tei.xml": '<TEI xmlns="http://www.tei-c.org/ns/1.0">\n<teiHeader></teiHeader><text><p>words</p></text></TEI>\n',
    "europarl.txt": '<CHAPTER ID="1">\nAgenda\n<SPEAKER ID="1" NAME="President">\nWords.\n<P>\nThank you.\n',
    "doctype.sgm": '<!DOCTYPE lewis SYSTEM "lewis.dtd">\n<REUTERS><TITLE>words</TITLE></REUTERS>\n',
}


KINDS = {
    "a file of subtitles": ("{1}{50}Hello\n", "[00:12.00]Hello\n", "[Script Info]\nTitle: x\n"),
    "an archive of mail": (
        "From a@b Mon Nov 30 10:00:00 2024\nFrom: A <a@b>\n\nHello\n",
        "From a at b.org  Mon Nov 30 10:00:00 2024\nFrom: a at b.org (A)\n\nHello\n",
        "Received: from x\n\tby y\nMessage-ID: <1@b>\nSubject: Hi\n\nHello\n",
    ),
    "a bank's statement": (":20:S\n:25:100/1\n", "{1:F01}:20:S\n:25:1\n", "OFXHEADER:100\n", "!Type:Bank\nD1/2/24\n"),
    "a list of references": ("TY  - JOUR\nTI  - T\n", "PMID- 123\n", "@article{a,\n  title={T}\n}\n"),
    "a dump of a database": (
        "-- MySQL dump 10.13\n--\n-- Host: x\n\n/*!40101 SET NAMES utf8 */;\n",
        "--\n-- PostgreSQL database dump\n--\n\nSET statement_timeout = 0;\n",
        "INSERT INTO t VALUES (1);\n",
    ),
    "tokens with tags": ("-DOCSTART- -X- O\n", "EU NNP B-ORG\nrejects VBZ O\n\n" * 6),
    "a transcript in CHAT's format": ("@UTF8\n@Begin\n",),
    "a list in JSON or Python": ('["a b", "c"]', '[\n "a \\"b\\"",\n "c"\n]', "['a b']"),
    "texts in quotes": ("".join(f'"Text {n}, words\\n"\n' for n in range(12)), "text\n" + '"A, b"\n' * 12),
    "a table of 3 columns separated by commas": ("id,title,text\n" + '1,T,"a, b"\n' * 12,),
    "a table of 2 columns separated by semicolons": ("title;the text\n" + "T;a b\n" * 12,),
    "a table of 2 columns separated by bars": ("title|text\n" + "T|a b\n" * 12,),
}


def documents(path, content, encoding="utf-8"):
    path.write_bytes(content.encode(encoding))
    return list(find_text(str(path), {}).documents())


@pytest.mark.parametrize("name", TABLES)
def test_columns_of_tabs_are_a_table(tmp_path, name):
    with pytest.raises(
        TextSourceError, match=r"it is a table of \d columns separated by tabs, such as .*HINT: .*\.tsv"
    ):
        documents(tmp_path / name, TABLES[name])


def test_tabs_within_text_are_text(tmp_path):
    for lines in (["A\tb", "c", *LINES * 9], [f"\t{line}" for line in LINES * 9], ["a\tb"] * 3):
        found = documents(tmp_path / "text.txt", "".join(f"{line}\n" for line in lines))
        assert found == [line.strip() for line in lines]


@pytest.mark.parametrize("name", MARKUP)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_markup_is_no_text(tmp_path, name, encoding):
    with pytest.raises(TextSourceError, match=r"it is an HTML or XML document\. HINT"):
        documents(tmp_path / name, MARKUP[name], encoding)


def test_marks_around_sentences_are_text(tmp_path):
    lines = ["<s> pierre <unk> , N years old </s>", "<s> mr. <unk> is chairman </s>", "<3 you"]
    for begin in range(3):
        assert documents(tmp_path / "text.txt", "\n".join(lines[begin:])) == lines[begin:]


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_known_formats_are_no_text(tmp_path, kind):
    for text in KINDS[kind]:
        for content in (text, text.replace("\n", "\r\n")):
            with pytest.raises(TextSourceError, match=rf"it is {kind}[,.].* HINT: extract its text"):
                documents(tmp_path / "text.txt", content)


def test_text_that_begins_as_those_is_text():
    for line in (
        "From the beginning, it was late.", "[10:00:01] <bob> hi", "[a] note", "Set in the year 1900",
        '"Yes," he said.', "roses, red, blue", "-- he said", "@bob hi", "It was late, and dark; so | they said",
    ):  # fmt: skip
        assert foreign_text(f"{line}\n" * 12) is None
    assert foreign_text("\n".join(["Subject: an essay", *LINES * 9])) is None


@pytest.mark.parametrize(
    "text", [SUBTITLES, SUBTITLES.replace("\n", "\r\n"), "WEBVTT\n\n00:00.000 --> 00:02.000\nHi\n"]
)
def test_subtitles_are_no_text(tmp_path, text):
    for encoding in ("utf-8-sig", "utf-16"):
        with pytest.raises(TextSourceError, match=r"it is a file of subtitles\. HINT: extract its text"):
            documents(tmp_path / "film.txt", text, encoding)


def test_articles_of_several_lines_are_said_once_with_what_joins_them(tmp_path, caplog):
    path = tmp_path / "text.txt"
    articles = [LINES, LINES[:2], LINES[1:]] * 9
    content = "\n\n".join("\n".join(article) for article in articles) + "\n"
    assert len(documents(path, content)) == 63
    assert (
        caplog.text.count(f"{path}: each line is an article of its own, though empty lines separate groups of 2") == 1
    )
    command = (
        caplog.text.split("with ")[-1].strip().replace("IN", str(path)).replace("OUT", str(tmp_path / "joined.txt"))
    )
    subprocess.run(command, shell=True, check=True)
    assert documents(path, (tmp_path / "joined.txt").read_text()) == [" ".join(article) for article in articles]
    assert caplog.text.count("each line is") == 1


def test_marks_between_articles_are_said(tmp_path, caplog):
    documents(tmp_path / "text.txt", "".join(f"{line}\n\n" for line in [*LINES, "<|endoftext|>"] * 30))
    assert (
        "each line is an article of its own, and so is '<|endoftext|>', 30 of the first 120 lines. HINT" in caplog.text
    )


@pytest.mark.parametrize("between", ["\n", "\n\n", "\n \n\n"])
def test_articles_on_lines_are_not_remarked_upon(between):
    for text in (between.join(LINES * 99), between.join(['"Yes."', *LINES * 90])):
        assert foreign_text(text) is None
        assert layout_remark(text) is None
    assert layout_remark("\n\n".join("\n".join(LINES * 200) for _ in range(3))) is None


def test_a_cut_beginning_is_judged_as_the_rest():
    for text in (TABLES["pairs"], SUBTITLES):
        assert {foreign_text(text[:end]) for end in range(len(text) - 30, len(text))} == {foreign_text(text)}
