# SPDX-License-Identifier: Apache-2.0
"""SQuAD's format as annotation tools, exporters and people write it: the same questions, at the places that are meant."""

import copy
import json

import pandas
import pytest

from lightning_sagemaker.recipes._common.data.tables import DataError
from lightning_sagemaker.recipes.bert_qa.prepare import Preparation
from lightning_sagemaker.recipes.bert_qa.squad import place_answers, read_questions

CONTEXT = "Ada was born in London in March. She studied art with Bob. London is large, and Paris is old."
TEXTS = {
    "a": ("London", CONTEXT.rindex("London")),
    "b": ("art", CONTEXT.index("art ")),
    "c": ("Bob", CONTEXT.index("Bob")),
}
QAS = [
    {"id": name, "question": f"{name}?", "answers": [{"text": text, "answer_start": start}]}
    for name, (text, start) in TEXTS.items()
]
PARAGRAPH = {"context": CONTEXT, "qas": QAS}
ARTICLE = {"title": "Ada", "paragraphs": [PARAGRAPH]}


def read(path, content, name="questions.json"):
    (path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return read_questions(str(path / name), "data.train", "train")[0]


def answered(questions):
    return {one.id: list(zip(one.answers, one.starts, strict=True)) for one in questions}


def changed(**keys):
    """The questions, the last with other keys."""
    return {"data": [{"paragraphs": [{"context": CONTEXT, "qas": [*QAS[:2], {**QAS[2], **keys}]}]}]}


@pytest.mark.parametrize(
    "content",
    [
        [ARTICLE],
        {"data": [PARAGRAPH]},
        ARTICLE,
        json.dumps(ARTICLE) + "\n",
        json.dumps({**ARTICLE, "paragraphs": []}) + "\n" + json.dumps(ARTICLE),
        "\ufeff" + json.dumps({"version": 2, "data": [ARTICLE]}, indent=1),
    ],
    ids=["articles", "paragraphs", "article", "line", "lines", "indented"],
)
@pytest.mark.parametrize("name", ["questions.json", "questions.jsonl", "train-v1.1"])
def test_articles_and_paragraphs_in_any_container(tmp_path, content, name):
    assert answered(read(tmp_path, content, name)) == {key: [value] for key, value in TEXTS.items()}


@pytest.mark.parametrize(
    "keys",
    [
        {"answers": None},
        {"answers": [{"text": "", "answer_start": -1}]},
        {"answers": {"text": [], "answer_start": []}},
        {"is_impossible": True},  # decides in SQuAD 2.0's own scripts
    ],
)
def test_no_answer_in_all_its_forms(tmp_path, keys):
    assert answered(read(tmp_path, changed(**keys)))["c"] == []


def test_answers_by_name_or_with_empty_ones_of_other_annotators(tmp_path):
    text, start = TEXTS["c"]
    for answers in (
        {"text": [text], "answer_start": [start]},
        [{"text": text, "answer_start": str(start)}, {"text": "", "answer_start": 0}],
        [{"text": text, "answer_start": float(start), "answer_id": 7, "answer_category": "SHORT"}],
    ):
        found = read(tmp_path, changed(answers=answers, is_impossible="false"))
        assert answered(found)["c"] == [(text, start)]


def test_tables_that_pandas_wrote_with_a_question_without_an_answer(tmp_path):
    rows = [
        {"id": name, "question": "?", "context": CONTEXT, "answer": a, "answer_start": b}
        for name, (a, b) in TEXTS.items()
    ]
    table = pandas.DataFrame([*rows, {"id": "d", "question": "?", "context": CONTEXT}])
    expected = {**{key: [value] for key, value in TEXTS.items()}, "d": []}
    assert answered(read(tmp_path, table.to_csv(index=False), "table.csv")) == expected
    assert answered(read(tmp_path, table.to_json(orient="records"), "table.json")) == expected
    table["is_impossible"] = [False, False, True, True]
    for content, name in ((table.to_csv(index=False), "a.csv"), (table.to_json(orient="records"), "a.json")):
        assert answered(read(tmp_path, content, name)) == {**expected, "c": []}
    table["answer_start"] = 1.5
    with pytest.raises(DataError, match=r"'1\.5' is not a whole number"):
        read(tmp_path, table.to_csv(index=False), "table.csv")


@pytest.mark.parametrize("key", ["question", "context"])
@pytest.mark.parametrize("text", [None, " ", ["a"]])
def test_a_question_without_text_is_refused(tmp_path, key, text):
    content = {"context": CONTEXT, "qas": [{**QAS[0], **({key: text} if key == "question" else {})}]}
    with pytest.raises(DataError, match=rf"the question 'a' has no {key}\. HINT: give each a {key}"):
        read(tmp_path, [{**content, **({key: text} if key == "context" else {})}])


def test_what_an_article_lacks_is_named(tmp_path):
    for content, what in (
        ([{"title": "Ada"}, PARAGRAPH], "'paragraphs' is missing"),
        ([{"context": CONTEXT, "qas": [{"query_id": "c", "question": "?", "answers": []}]}], "'id' is missing"),
        ([{"text": CONTEXT, "qas": QAS}], "'context' is missing"),
    ):
        with pytest.raises(DataError, match=rf"is not in SQuAD's format \({what}\)\. HINT: articles have paragraphs"):
            read(tmp_path, content)


def test_mrqa_s_own_files_and_those_of_datasets_are_read(tmp_path):
    """https://github.com/mrqa/MRQA-Shared-Task-2019, and its rows on the hub."""
    spans = {name: [[start, start + len(text) - 1]] for name, (text, start) in TEXTS.items()}
    qas = [
        {
            "qid": name,
            "id": "all",
            "question": "?",
            "answers": ["A"],
            "detected_answers": [{"text": text, "char_spans": spans[name]}],
        }
        for name, (text, _) in TEXTS.items()
    ]
    lines = [{"header": {"split": "train"}}, {"id": "", "context": CONTEXT, "qas": qas}]
    rows = [
        {
            "context": CONTEXT,
            "qid": name,
            "question": "?",
            "answers": [text],
            "detected_answers": {"text": [text], "char_spans": [{"start": [start], "end": [start + len(text) - 1]}]},
        }
        for name, (text, start) in TEXTS.items()
    ]
    for content in (lines, rows):
        found = read(tmp_path, "".join(json.dumps(line) + "\n" for line in content), "train.jsonl")
        assert answered(found) == {key: [value] for key, value in TEXTS.items()}


def test_questions_by_id_are_read(tmp_path):
    rows = [{"question": one["question"], "context": CONTEXT, "answers": one["answers"]} for one in QAS]
    found = read(tmp_path, dict(zip(["q1", "q2", "q3", "q4"], [*rows, rows[0]], strict=True)))
    assert list(answered(found)) == ["q1", "q2", "q3", "q4"]
    with pytest.raises(DataError, match="has no column 'question'"):
        read(tmp_path, {"q1": rows[0], "q2": rows[1], "q3": rows[2]})  # as many columns as questions: either way


def test_a_column_of_splits_tells_which_questions_are_read(tmp_path):
    rows = [
        {"id": name, "question": "?", "context": CONTEXT, "answers": [text], "split": split}
        for (name, (text, _)), split in zip(TEXTS.items(), ("train", "dev", "train"), strict=True)
    ]
    assert list(answered(read(tmp_path, rows))) == ["a", "c"]
    with pytest.raises(DataError, match=r"'split' has records of other splits only: test, validation\. HINT: give"):
        read(tmp_path, [{**rows[0], "split": "test"}, rows[1]])


def test_an_answer_may_be_an_object(tmp_path):
    record = {"id": "c", "question": "?", "context": CONTEXT}
    text, start = TEXTS["c"]
    for answer in ({"text": text, "answer_start": start}, [{"text": text, "answer_start": start}]):
        assert answered(read(tmp_path, [{**record, "answer": answer}])) == {"c": [TEXTS["c"]]}
    with pytest.raises(DataError, match="cannot be read .*HINT: they must be"):
        read(tmp_path, [{**record, "answer": {"text": text, "start": start}}])


def test_answers_may_be_texts_without_starts(tmp_path):
    qas = [{**QAS[2], "answers": ["Bob", "art"]}]
    for content in ([{"context": CONTEXT, "qas": qas}], [{"context": CONTEXT, **qas[0]}]):
        found = read(tmp_path, content)
        assert answered(place_answers(found, "search", "it")) == {"c": [TEXTS["c"], TEXTS["b"]]}
        with pytest.raises(DataError, match="not at answer_start: c.*HINT: .*search"):
            place_answers(found, "error", "it")


def test_a_negative_start_does_not_count_from_the_end(tmp_path):
    found = read(tmp_path, changed(answers=[{"text": "old", "answer_start": -4}]))
    with pytest.raises(DataError, match="whose answer is not at answer_start: c"):
        place_answers(found, "error", "it")
    assert answered(place_answers(found, "search", "it"))["c"] == [("old", CONTEXT.index("old"))]


@pytest.mark.parametrize("shift", [-2, 1, 3])
def test_a_misplaced_answer_is_the_nearest_one_and_a_whole_word(tmp_path, shift):
    qas = copy.deepcopy(QAS)
    for one in qas:
        one["answers"][0]["answer_start"] += shift
    found = place_answers(read(tmp_path, {**ARTICLE, "paragraphs": [{"context": CONTEXT, "qas": qas}]}), "search", "it")
    assert answered(found) == {key: [value] for key, value in TEXTS.items()}


def test_an_answer_without_a_start_is_the_first_whole_word_else_the_first_part_of_one(tmp_path):
    table = pandas.DataFrame({"question": "?", "context": CONTEXT, "answer": ["art", "Lon"]})
    found = place_answers(read(tmp_path, table.to_csv(index=False), "table.csv"), "search", "it")
    assert [one.starts for one in found] == [(CONTEXT.index("art "),), (CONTEXT.index("Lon"),)]


@pytest.mark.parametrize(
    ("context", "answer", "is_found"),
    [
        ("Die Finanzen sind gut.", "nan", False),
        ("It was in 1956.", "5", False),
        ("It was in 1956.", "19", False),
        ("서울은 크다.", "서울", True),
        ("他住在北京市。", "北京", True),
        ("Budapesten él.", "Budapest", True),
    ],
)
def test_an_answer_without_a_start_is_not_looked_for_inside_words_and_numbers(tmp_path, context, answer, is_found):
    table = pandas.DataFrame({"question": ["?"], "context": [context], "answer": [answer]})
    found = place_answers(read(tmp_path, table.to_csv(index=False), "table.csv"), "search", "it")
    assert [one.starts for one in found] == ([(context.index(answer),)] if is_found else [])


def test_an_answer_of_a_question_of_an_article_may_be_an_object(tmp_path):
    qas = [{**one, "answer": one["answers"][0]} for one in QAS]
    for one in qas:
        del one["answers"]
    article = {"title": "Ada", "url": "u", "context": CONTEXT, "qas": qas, "raw_html": f"<p>{CONTEXT}</p>"}
    assert answered(read(tmp_path, {"version": "2.0", "data": [article]})) == {k: [v] for k, v in TEXTS.items()}


FLAT = {"id": "c", "question": "?", "context": CONTEXT}
UNKNOWN = {
    "text": {"text": "Bob", "answer_start": TEXTS["c"][1]},
    "flattened": {"answers.text": ["Bob"], "answers.answer_start": [TEXTS["c"][1]]},
    "reply": {"reply": "Bob", "answer_start": TEXTS["c"][1], "is_impossible": False},
    "none": {},
}


@pytest.mark.parametrize("keys", UNKNOWN.values(), ids=UNKNOWN)
@pytest.mark.parametrize("is_nested", [False, True])
def test_answers_under_an_unknown_name_are_no_questions_without_an_answer(tmp_path, caplog, keys, is_nested):
    question = {"id": "c", "question": "?", **keys}
    content = [{"context": CONTEXT, "qas": [question]}] if is_nested else [{**FLAT, **keys}]
    for option in ("data.train", "data.validation"):
        (tmp_path / "questions.json").write_text(json.dumps(content))
        with pytest.raises(DataError, match=r"has no answers, but .*HINT: name the column with the answers answers"):
            read_questions(str(tmp_path / "questions.json"), option, "train")
    for option, is_said in (("data.predict", False), ("data.test", True)):
        [found], _ = read_questions(str(tmp_path / "questions.json"), option, "test")
        assert found.answers == ()
        assert ("questions count as those without an answer" in caplog.text) is is_said


@pytest.mark.parametrize(("yes", "no"), [("yes", "no"), ("Y", "N"), ("1.0", "0.0"), ("TRUE", ""), (1.0, None)])
def test_is_impossible_as_people_and_libraries_write_it(tmp_path, yes, no):
    rows = [{**FLAT, "id": value, "answer": "Bob", "answer_start": TEXTS["c"][1]} for value in "ab"]
    found = read(tmp_path, [{**rows[0], "is_impossible": yes}, {**rows[1], "is_impossible": no}])
    assert answered(found) == {"a": [], "b": [TEXTS["c"]]}
    with pytest.raises(DataError, match=r"record 1 has 'maybe' in is_impossible\. HINT: write true or false"):
        read(tmp_path, [{**rows[0], "is_impossible": "maybe"}])


def test_columns_are_found_in_any_case_and_kept_as_they_are(tmp_path):
    rows = [{"ID": "a", "Question": "a?", "Context": CONTEXT, "Answer": "art", "Answer_start": TEXTS["b"][1]}]
    (tmp_path / "questions.csv").write_text(pandas.DataFrame(rows).to_csv(index=False))
    [question] = read_questions(str(tmp_path / "questions.csv"), "data.train", "train")[0]
    assert (question.id, question.answers, question.starts) == ("a", ("art",), (TEXTS["b"][1],))
    assert list(question.record) == list(rows[0])


def test_answers_that_are_plain_text_in_a_column_of_lists_are_one_sentence(tmp_path):
    (tmp_path / "questions.csv").write_text(f'question,context,answers\na?,"{CONTEXT}",Bob\n')
    with pytest.raises(
        DataError, match=r"the answers 'Bob', which cannot be read \(it is neither JSON nor Python\)\. HINT"
    ):
        read_questions(str(tmp_path / "questions.csv"), "data.train", "train")


def test_questions_that_are_trained_on_and_evaluated_are_reported(tmp_path, caplog):
    for name, articles in (("train", [ARTICLE]), ("dev", [{"paragraphs": [{"context": CONTEXT, "qas": QAS[1:]}]}])):
        (tmp_path / f"{name}.json").write_text(json.dumps({"data": articles}))
    files = {"train": str(tmp_path / "train.json"), "val": str(tmp_path / "dev.json")}
    Preparation(files=files).build(tmp_path)
    assert "val: 2 of 2 questions are also in the training data, with the same context" in caplog.text
