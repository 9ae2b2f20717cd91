# SPDX-License-Identifier: Apache-2.0
"""Question answering: reading, windows, spans, and the official metric."""

import csv
import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torchmetrics.text import SQuAD
from transformers import ByT5Tokenizer

from lightning_sagemaker.recipes._common.cli.recipe_cli import RecipeCLI
from lightning_sagemaker.recipes._common.data.tables import DataError
from lightning_sagemaker.recipes._common.data.wordpiece import train_wordpiece
from lightning_sagemaker.recipes.bert_qa.answers import best_spans, choose_answers, merge_windows
from lightning_sagemaker.recipes.bert_qa.data import QuestionAnsweringDataModule
from lightning_sagemaker.recipes.bert_qa.facts import fact_articles
from lightning_sagemaker.recipes.bert_qa.metrics import evaluate
from lightning_sagemaker.recipes.bert_qa.recipe import RECIPE
from lightning_sagemaker.recipes.bert_qa.squad import nested_questions, place_answers, read_questions
from lightning_sagemaker.recipes.bert_qa.windows import Template, cut_windows

CASES = json.loads((Path(__file__).parent / "data" / "squad_evaluation.json").read_text())
"""Made-up answers with what the evaluation of SQuAD 2.0 in transformers 4.57.1 computes from them."""


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_metric_is_the_official_one_to_the_last_digit(case):
    found = evaluate(case["answers"], case["predictions"], case["null_odds"], case["threshold"])
    expected = {k: v for k, v in case["expected"].items() if case["null_odds"] or not k.startswith("best_")}
    assert found == expected


_TEXT = st.lists(
    st.sampled_from(["the", "An", "Paris,", "café", "1,000", "“x”", "北京", "?!", "U.S."]), max_size=4
).map(" ".join)


@given(st.lists(st.tuples(st.lists(_TEXT, min_size=1, max_size=3), _TEXT), min_size=1, max_size=5))
def test_metric_is_torchmetrics_where_both_have_words(pairs):
    from lightning_sagemaker.recipes.bert_qa.metrics import normalize_answer

    pairs = [(golds, text) for golds, text in pairs if all(map(normalize_answer, [*golds, text]))]
    if not pairs:
        return
    metric = SQuAD()
    metric.update(
        [{"prediction_text": text, "id": str(i)} for i, (_, text) in enumerate(pairs)],
        [
            {"answers": {"answer_start": [0] * len(golds), "text": golds}, "id": str(i)}
            for i, (golds, _) in enumerate(pairs)
        ],
    )
    answers = {str(i): golds for i, (golds, _) in enumerate(pairs)}
    found = evaluate(answers, {str(i): text for i, (_, text) in enumerate(pairs)})
    expected = {name: value.item() for name, value in metric.compute().items()}
    assert (found["exact"], found["f1"]) == pytest.approx((expected["exact_match"], expected["f1"]), rel=1e-5)


def test_predicting_nothing_is_right_only_without_an_answer():
    found = evaluate({"a": ["x"], "b": []}, {"a": "", "b": ""})
    assert (found["exact"], found["HasAns_exact"], found["NoAns_exact"]) == (50.0, 0.0, 100.0)


@pytest.fixture(scope="module")
def articles():
    return fact_articles(40, "train")


@pytest.fixture(scope="module")
def tokenizer(articles):
    questions = nested_questions(articles)
    return train_wordpiece([text for q in questions for text in (q.question, q.context)], 400)


@pytest.mark.parametrize(("max_length", "stride"), [(64, 16), (40, 0), (200, 50), (48, 20)])
def test_windows_are_those_of_the_tokenizer(articles, tokenizer, max_length, stride):
    questions = nested_questions(articles)
    expected = tokenizer(
        [q.question for q in questions],
        [q.context for q in questions],
        truncation="only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
    )
    asked = [tokenizer(q.question, add_special_tokens=False)["input_ids"] for q in questions]
    contexts = [tokenizer(q.context, add_special_tokens=False)["input_ids"] for q in questions]
    template = Template.of(tokenizer)
    lengths = [np.array([len(row) for row in rows]) for rows in (asked, contexts)]
    windows = cut_windows(*lengths, template.num_special, max_length, stride)
    assert windows.question.tolist() == expected["overflow_to_sample_mapping"]
    for number, ids in enumerate(expected["input_ids"]):
        question = windows.question[number]
        inside = contexts[question][windows.start[number] : windows.end[number]]
        assert [*template.before, *asked[question], *template.between, *inside, *template.after] == ids


def test_a_stride_without_room_to_move_is_refused():
    with pytest.raises(DataError, match=r"max_seq_length=32.*doc_stride=20.*room for 19"):
        cut_windows(np.array([10]), np.array([100]), 3, 32, 20)


def data_module(path, cache, **options):
    settings = {
        "vocab_size": 400,
        "max_seq_length": 48,
        "doc_stride": 12,
        "max_query_length": 24,
        "global_batch_size": 8,
    }
    return QuestionAnsweringDataModule(train=str(path), cache_dir=str(cache), **{**settings, **options})


@pytest.fixture(scope="module")
def squad_file(articles, tmp_path_factory):
    path = tmp_path_factory.mktemp("squad") / "train.json"
    path.write_text(json.dumps({"version": "v2.0", "data": articles}))
    return path


def test_labels_are_the_tokens_of_the_answer(squad_file, tmp_path):
    data = data_module(squad_file, tmp_path, version_2_with_negative=True)
    data.prepare_data()
    data.setup("fit")
    tokenizer, windows = data.load_tokenizer(), data.splits["train"]
    seen = 0
    for batch in data.train_dataloader():
        for ids, (first, last), index in zip(batch["input_ids"], batch["labels"].tolist(), batch["index"], strict=True):
            question = windows.windows.question[index]
            if (first, last) == (0, 0):
                continue
            answer = windows.texts["questions"][question]["answers"][0]
            assert tokenizer.decode(ids[first : last + 1]) == answer.lower()
            shift = windows.shift(index.numpy())
            assert windows.text(question, first + shift, last + shift) == answer
            seen += 1
    assert seen > 60


def test_flat_records_are_read_as_the_nested_ones(squad_file, tmp_path):
    nested, _ = read_questions(str(squad_file), "data.train", "train")
    rows = [
        {
            "id": q.id,
            "question": q.question,
            "context": q.context,
            "answers": {"text": list(q.answers), "answer_start": list(q.starts)},
        }
        for q in nested
    ]
    for name, text in (
        ("flat.json", json.dumps({"data": rows})),
        ("flat.jsonl", "\n".join(json.dumps(row) for row in rows)),
    ):
        (tmp_path / name).write_text(text)
        assert read_questions(str(tmp_path / name), "data.train", "train")[0] == nested
    for name, data in {
        "packed.json.gz": gzip.compress(squad_file.read_bytes()),
        "packed.jsonl.gz": gzip.compress((tmp_path / "flat.jsonl").read_bytes()),
    }.items():
        (tmp_path / name).write_bytes(data)
        assert read_questions(str(tmp_path / name), "data.train", "train")[0] == nested
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(squad_file.read_bytes())[:-9])
    with pytest.raises(
        DataError, match=r"cut.json.gz cannot be read: it is compressed, and damaged or incomplete.*HINT"
    ):
        read_questions(str(tmp_path / "cut.json.gz"), "data.train", "train")


def brute_force(start, end, inside, count, longest):
    spans = [
        (-(start[i] + end[j]).item(), i, j)
        for i in range(len(start))
        for j in range(i, min(len(start), i + longest))
        if inside[i] and inside[j]
    ]
    return [(i, j) for _, i, j in sorted(spans)[:count]]


@pytest.mark.parametrize("longest", [1, 4, 30])
def test_best_spans_are_the_best(longest):
    generator = torch.Generator().manual_seed(longest)
    start, end = torch.randn(2, 5, 20, generator=generator)
    inside = torch.zeros(5, 20, dtype=torch.bool)
    for row, (begin, stop) in enumerate([(3, 19), (5, 6), (4, 18), (7, 7), (1, 20)]):
        inside[row, begin:stop] = True
    found = best_spans(start, end, inside, 12, longest)
    for row in range(5):
        expected = brute_force(start[row], end[row], inside[row], 12, longest)
        spans = list(zip(found["start"][row].tolist(), found["end"][row].tolist(), strict=True))
        assert [span for span in spans if span[0] >= 0] == expected
    assert torch.equal(found["null"], start[:, 0] + end[:, 0])


def test_a_span_in_two_windows_counts_once_and_the_lowest_null_score_decides():
    columns = {
        "start": np.array([[5, 7], [2, -1]]),
        "end": np.array([[6, 7], [3, -1]]),
        "start_logit": np.array([[2.0, 1.0], [3.0, -1.0]]),
        "end_logit": np.array([[2.0, 0.5], [3.0, -1.0]]),
    }
    # Windows of one question: place 5 of the first and place 2 of the second are the same token of the context.
    candidates = merge_windows(np.array([0, 0]), columns, np.array([-4, -1]), 20)
    assert candidates.first.tolist() == [1, 3]
    assert candidates.score.tolist() == [6.0, 1.5]
    answers = choose_answers(["q"], ["best", "other"], candidates, np.array([7.0]), threshold=0.5)
    assert answers.predictions == {"q": ""}
    assert answers.null_odds == {"q": 1.0}
    assert [entry["text"] for entry in answers.nbest["q"]] == ["", "best", "other"]
    assert sum(entry["probability"] for entry in answers.nbest["q"]) == pytest.approx(1)
    assert choose_answers(["q"], ["best", "other"], candidates, np.array([7.0]), None).predictions == {"q": "best"}


def misplaced(articles):
    broken = json.loads(json.dumps(articles))
    first = broken[0]["paragraphs"][0]
    for qa in first["qas"]:
        for answer in qa["answers"]:
            answer["answer_start"] += 1
    return nested_questions(broken)


def test_misplaced_answers_are_refused_left_out_or_found(articles):
    questions = misplaced(articles)
    wrong = [question.id for question in questions if question.misplaced]
    with pytest.raises(DataError, match=rf"{len(wrong)} questions of x .*{wrong[0]}.*HINT"):
        place_answers(questions, "error", "x")
    assert len(place_answers(questions, "skip", "x")) == len(questions) - len(wrong)
    found = place_answers(questions, "search", "x")
    assert len(found) == len(questions)
    assert not any(question.misplaced for question in found)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no records"),
        ("[1,", "cannot be read as JSON"),
        ('{"data": []}', "no record"),
        ('{"data": [{"paragraphs": [{"qas": [{"id": 1}]}]}]}', "not in SQuAD's form"),
        ('[{"id": "1", "question": "?", "text": "x"}]', "no column 'context'"),
        (
            '[{"id": "1", "question": "?", "context": "x", "answers": "x"}]',
            "record 1 has the answers 'x', which cannot be read",
        ),
        ('[{"id": "1", "question": " ", "context": "x"}]', "record 1 has no question"),
    ],
)
def test_unusable_files_are_refused(tmp_path, content, message):
    path = tmp_path / "train.json"
    path.write_text(content)
    with pytest.raises(DataError, match=f"(?s){message}.*HINT"):
        data_module(path, tmp_path / "cache").prepare_data()
    assert not list((tmp_path / "cache").glob("*"))


ANSWERS = {"text": ["is", "Tonin"], "answer_start": [6, 0]}
TABLE = [
    {"nr": "7", "id": "a", "question": "Qu\u2019est-ce?", "context": 'Tonin is "high";\nvery', "answers": ANSWERS},
    {
        "nr": "8",
        "id": "b",
        "question": "What, else?",
        "context": "Tonin is low.",
        "answers": {"text": [], "answer_start": []},
    },
]


def pandas_text(answers):
    """What ``DataFrame.to_csv`` makes of a dataset's answers."""
    texts, starts = answers["text"], answers["answer_start"]
    return f"{{'text': array({texts!r}, dtype=object), 'answer_start': array({starts!r}, dtype=int32)}}"


def list_of_answers(answers):
    return json.dumps([dict(zip(answers, pair, strict=True)) for pair in zip(*answers.values(), strict=True)])


@pytest.mark.parametrize("write_answers", [json.dumps, str, pandas_text, list_of_answers])
@pytest.mark.parametrize(("delimiter", "encoding"), [(",", "utf-8-sig"), (";", "cp1252"), ("\t", "utf-16")])
def test_tables_of_text_are_read_as_json_is(tmp_path, write_answers, delimiter, encoding):
    with (tmp_path / "table.csv").open("w", newline="", encoding=encoding) as file:
        writer = csv.DictWriter(file, list(TABLE[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows({**row, "answers": write_answers(row["answers"])} for row in TABLE)
    (tmp_path / "table.json").write_text(json.dumps(TABLE))
    found, (how,) = read_questions(str(tmp_path / "table.csv"), "data.train", "train")
    assert found == read_questions(str(tmp_path / "table.json"), "data.train", "train")[0]
    assert [question.answers for question in found] == [("is", "Tonin"), ()]
    assert repr(delimiter) in how
    assert [question.record["nr"] for question in found] == ["7", "8"]


def test_one_answer_in_columns_of_its_own_and_no_id(tmp_path):
    rows = [
        ["question", "context", "answer", "answer_start"],
        ["a?", "x y", "y", "2"],
        ["b?", "x y", "", ""],
        ["c?", "x y", "y", ""],
    ]
    with (tmp_path / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    found, _ = read_questions(str(tmp_path), "data.train", "train")
    assert [(q.id, q.answers, q.starts) for q in found] == [("1", ("y",), (2,)), ("2", (), ()), ("3", ("y",), (-1,))]
    with pytest.raises(DataError, match="1 questions of the data .* 3.*misplaced_answers"):
        place_answers(found, "error", "the data")
    assert [q.starts for q in place_answers(found, "search", "the data")] == [(2,), (), (2,)]


def test_two_questions_with_one_id_are_refused(articles, tmp_path):
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"data": [*articles, articles[0]]}))
    with pytest.raises(DataError, match="two questions with the id"):
        read_questions(str(path), "data.train", "train")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"data\.train=.*does not exist.*HINT"):
        data_module(tmp_path / "absent.json", tmp_path).prepare_data()


def test_towns_of_validation_are_not_in_training():
    names = [{article["title"] for article in fact_articles(300, split)} for split in ("train", "val")]
    assert not names[0] & names[1]
    random.seed(0)
    assert fact_articles(3, "val") == fact_articles(3, "val")


def test_only_questions_that_were_asked_are_answered_and_counted(tmp_path):
    options = ["--config", "tiny.yaml", "--strategy", "auto", "--run_dir", tmp_path, "--cache_dir", tmp_path / "cache"]
    options += ["--max_train_samples", 64, "--max_eval_samples", 45, "--max_steps", 1, "--eval_batch_size", 8]
    options += ["--trainer.limit_val_batches", 2, "--trainer.max_epochs", -1, "--val_check_interval", 1]
    RecipeCLI(RECIPE, [str(word) for word in options])
    output = tmp_path / "output"

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    for name in ("predictions.json", "nbest_predictions.json", "null_odds.json"):
        assert len(json.loads((output / name).read_text(), parse_constant=refuse)) == 16
    assert json.loads((output / "metrics.json").read_text())["val_total"] == 16
    rows = [
        ["note", "question", "context"],
        ["x", "What is in Tonin?", "Tonin has a mill."],
        ["", "Who, then?", "No one;\nno."],
    ]
    with (tmp_path / "new.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=";").writerows(rows)
    options = ["predict", "--strategy", "auto", "--run_dir", tmp_path, "--cache_dir", tmp_path / "cache"]
    options += [
        "--pretrained",
        tmp_path / "model",
        "--predict_file",
        tmp_path / "new.csv",
        "--version_2_with_negative",
        True,
    ]
    RecipeCLI(RECIPE, [str(word) for word in options])
    with (output / "predictions.csv").open(newline="") as file:
        header, *found = csv.reader(file)
    assert header == ["index", *rows[0], "prediction", "probability", "null_odds"]
    assert [row[:4] for row in found] == [["0", *rows[1]], ["1", *rows[2]]]
    predictions = json.loads((output / "predictions.json").read_text())
    assert [row[4] for row in found] == [predictions["1"], predictions["2"]]


def test_a_tokenizer_that_cannot_say_where_tokens_came_from_is_refused(tmp_path):
    ByT5Tokenizer().save_pretrained(tmp_path / "bytes")
    data = QuestionAnsweringDataModule(train="facts", tokenizer=str(tmp_path / "bytes"), cache_dir=str(tmp_path))
    with pytest.raises(MisconfigurationException, match="not a fast tokenizer.*HINT"):
        data.prepare_data()
