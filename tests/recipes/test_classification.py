# SPDX-License-Identifier: Apache-2.0
"""Sequence classification: reading tables, labels, splits, metrics, bad input."""

import csv
import json

import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_sagemaker.recipes._common.cli.recipe_cli import RecipeCLI
from lightning_sagemaker.recipes._common.data.tables import DataError, read_files
from lightning_sagemaker.recipes._common.data.wordpiece import train_wordpiece
from lightning_sagemaker.recipes.sequence_classification import prepare
from lightning_sagemaker.recipes.sequence_classification.data import ClassificationDataModule
from lightning_sagemaker.recipes.sequence_classification.decisions import AS_IS
from lightning_sagemaker.recipes.sequence_classification.labels import (
    MULTI,
    REGRESSION,
    SINGLE,
    LabelScheme,
    class_weights,
    find_scheme,
    given_weights,
)
from lightning_sagemaker.recipes.sequence_classification.metrics import evaluate, losses, report
from lightning_sagemaker.recipes.sequence_classification.recipe import RECIPE
from lightning_sagemaker.recipes.sequence_classification.splitting import stratified
from lightning_sagemaker.recipes.sequence_classification.token_dropout import TokenDropout
from lightning_sagemaker.recipes.sequence_classification.transactions import CATEGORIES, transactions

ROWS = [{"text": f"the {word} number {i}", "label": word} for i in range(40) for word in ("red", "green", "blue")]


def write(path, rows):
    if path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def data_module(path, cache, **options):
    settings = {"vocab_size": 200, "max_length": 16, "global_batch_size": 8}
    return ClassificationDataModule(train=str(path), cache_dir=str(cache), **{**settings, **options})


def prepared(path, cache, **options):
    data = data_module(path, cache, **options)
    data.prepare_data()
    data.setup("fit")
    return data


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".json", ".jsonl", ".parquet"])
def test_all_kinds_of_table_are_the_same(tmp_path, suffix):
    rows = [{"text": 'with, comma and "quotes"\nand a line', "label": "ä"}, {"text": "plain", "label": "b"}]
    assert read_files([write(tmp_path / f"table{suffix}", rows)]) == rows


def test_splits_have_all_classes_in_proportion_and_every_sample_once(tmp_path):
    labels = ["a"] * 700 + ["b"] * 200 + ["c"] * 100
    rest, val, test = (part.tolist() for part in stratified(labels, [0.1, 0.2], seed=0))
    assert sorted([*rest, *val, *test]) == list(range(1000))
    for part, share in ((rest, 0.7), (val, 0.1), (test, 0.2)):
        counts = [sum(labels[i] == name for i in part) for name in "abc"]
        assert counts == pytest.approx([share * n for n in (700, 200, 100)], abs=3)
    again, other = (np.concatenate(stratified(labels, [0.1, 0.2], seed)).tolist() for seed in (0, 1))
    assert again == [*rest, *val, *test] != other


def test_batches_hold_the_right_texts_and_labels(tmp_path):
    data = prepared(write(tmp_path / "train.csv", ROWS), tmp_path)
    assert data.scheme == LabelScheme(SINGLE, ("blue", "green", "red"))
    assert data.manifest["counts"] == pytest.approx({"train": 96, "val": 12, "test": 12}, abs=1)
    tokenizer, seen = data.load_tokenizer(), []
    for batch in data.train_dataloader():
        assert batch["input_ids"].shape == batch["attention_mask"].shape == batch["token_type_ids"].shape
        for ids, label in zip(batch["input_ids"], batch["labels"], strict=True):
            text = tokenizer.decode(ids, skip_special_tokens=True)
            assert data.scheme.names[int(label)] in text
            seen.append(text)
    assert len(set(seen)) == 96


def test_how_many_texts_are_tokenised_at_once_changes_nothing(tmp_path, monkeypatch):
    rows = [{**row, "sentence1": row["text"] * (1 + number % 9), "sentence2": "x y"} for number, row in enumerate(ROWS)]
    path = write(tmp_path / "train.jsonl", rows)
    contents = []
    for at_once in (prepare._AT_ONCE, 7):
        monkeypatch.setattr(prepare, "_AT_ONCE", at_once)
        data = prepared(path, tmp_path / str(at_once), text_columns=["sentence1", "sentence2"])
        contents.append({file.name: file.read_bytes() for file in sorted(data.folder.iterdir()) if file.is_file()})
    assert contents[0] == contents[1]


def test_pairs_have_two_types(tmp_path):
    rows = [{"sentence1": "a b c", "sentence2": "d e", "label": str(i % 2)} for i in range(60)]
    batch = next(iter(prepared(write(tmp_path / "pairs.csv", rows), tmp_path).train_dataloader()))
    assert batch["token_type_ids"][0].tolist() == [0, 0, 0, 0, 0, 1, 1, 1]


def test_problem_follows_from_the_labels():
    assert find_scheme(["x", "y"], "auto") == LabelScheme(SINGLE, ("x", "y"))
    assert find_scheme(["10", "9", "10"], "auto") == LabelScheme(SINGLE, ("9", "10"))
    assert find_scheme([["x"], ["x", "y"]], "auto") == LabelScheme(MULTI, ("x", "y"))
    assert find_scheme(["1.5", "2"], "auto") == LabelScheme(REGRESSION)
    assert find_scheme([1, 2], "auto").problem == SINGLE


def test_order_of_a_models_own_labels_is_kept():
    known = ("Neutral", "Contradiction", "Entailment")
    found = find_scheme(["entailment", "neutral", "contradiction"], "auto", known)
    assert found.names == ("neutral", "contradiction", "entailment")
    assert find_scheme(["a", "b"], "auto", known).names == ("a", "b")


def test_weights_have_mean_one_over_the_samples():
    labels = np.array([0, 0, 0, 1], dtype=np.float32)
    weights = class_weights(labels, 2)
    assert weights == pytest.approx([4 / 6, 2])
    assert np.mean([weights[int(label)] for label in labels]) == pytest.approx(1)
    given = given_weights(labels, ("a", "b"), {"b": 3.0})
    assert given[1] == pytest.approx(3 * given[0])
    assert np.mean([given[int(label)] for label in labels]) == pytest.approx(1)
    with pytest.raises(DataError, match="'c'.*HINT.*classes are a, b"):
        given_weights(labels, ("a", "b"), {"c": 1.0})


def test_losses_are_torchs():
    logits, labels = torch.randn(7, 3), torch.randint(0, 3, (7,))
    single = losses(LabelScheme(SINGLE, tuple("abc")), logits, labels.float(), 0.1)
    expected = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)
    assert single.mean() == pytest.approx(expected.item())
    many = torch.randint(0, 2, (7, 3)).float()
    multi = losses(LabelScheme(MULTI, tuple("abc")), logits, many).mean()
    assert multi == pytest.approx(torch.nn.functional.binary_cross_entropy_with_logits(logits, many).item())
    score = losses(LabelScheme(REGRESSION), logits[:, :1], labels.float()).mean()
    assert score == pytest.approx(torch.nn.functional.mse_loss(logits[:, 0], labels.float()).item())


def test_metrics_by_hand():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 2.0]])
    labels = torch.tensor([0.0, 1.0, 1.0, 1.0])
    found = evaluate(LabelScheme(SINGLE, ("no", "yes")), logits, labels)
    # Of "yes": precision 2/2, recall 2/3; of "no": precision 1/2, recall 1/1.
    assert found["accuracy"] == 0.75
    assert found["f1"] == pytest.approx(0.8)
    assert found["f1_macro"] == pytest.approx((0.8 + 2 / 3) / 2)
    assert found["matthews_correlation"] == pytest.approx((1 * 2 - 0 * 1) / (2 * 2 * 1 * 3) ** 0.5)
    content = report(LabelScheme(SINGLE, ("no", "yes")), logits, labels, AS_IS, {})
    assert content["confusion"] == [[1, 0], [1, 2]]
    assert content["classes"]["yes"] == pytest.approx({"precision": 1, "recall": 2 / 3, "f1": 0.8, "samples": 3})
    scores = evaluate(LabelScheme(REGRESSION), torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 3.0, 5.0]))
    assert (scores["mse"], scores["spearman"]) == pytest.approx((2 / 3, 1.0), abs=1e-5)
    many = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    multi = evaluate(LabelScheme(MULTI, ("a", "b")), torch.tensor([[5.0, -5.0], [5.0, -5.0]]), many)
    assert (multi["accuracy"], multi["f1"]) == pytest.approx((0.5, 0.8))


@pytest.mark.parametrize("kind", ["multi", "regression"])
def test_several_labels_and_scores_are_trained_and_predicted(tmp_path, kind):
    values = {"multi": ["warm|red", "cold|blue"], "regression": ["0.5", "2.0"]}[kind]
    rows = [{"text": f"{('red', 'blue')[i % 2]} {i}", "label": values[i % 2]} for i in range(120)]
    path = write(tmp_path / "train.csv", rows)
    options = ["--config", "tiny.yaml", "--train_file", path, "--run_dir", tmp_path / "run", "--cache_dir", tmp_path]
    options += ["--vocab_size", 100, "--strategy", "auto", "--max_steps", 60, "--global_batch_size", 16]
    options += ["--data.label_delimiter", "|"] if kind == "multi" else []
    options += ["--trainer.max_epochs", -1, "--warmup_steps", 5]
    RecipeCLI(RECIPE, [str(word) for word in options])
    metrics = json.loads((tmp_path / "run" / "output" / "metrics.json").read_text())
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    RecipeCLI(RECIPE, [str(word) for word in ["predict", *options, "--ckpt_path", last]])
    with (tmp_path / "run" / "output" / "predictions.csv").open() as file:
        predictions = [row["prediction"] for row in csv.DictReader(file)]
    if kind == "multi":
        assert metrics["val_f1"] > 0.95
        assert set(predictions) <= {"red|warm", "blue|cold"}
    else:
        assert metrics["val_mse"] < 0.1
        assert {round(float(value) * 2) / 2 for value in predictions} == {0.5, 2.0}


def test_token_dropout_hides_a_share_of_what_is_not_special():
    tokenizer = train_wordpiece(["one two three four five six"] * 3, 100)
    ids = torch.tensor(tokenizer(["one two three four five six"] * 400)["input_ids"])
    torch.manual_seed(0)
    dropped = TokenDropout(0.25, tokenizer)(ids)
    inner = dropped[:, 1:-1]
    assert (dropped[:, [0, -1]] == ids[:, [0, -1]]).all()
    assert set(dropped[dropped != ids].tolist()) == {tokenizer.mask_token_id}
    assert float((inner == tokenizer.mask_token_id).double().mean()) == pytest.approx(0.25, abs=0.03)
    padding = torch.full((4, 4), tokenizer.pad_token_id)
    assert (TokenDropout(0.9, tokenizer)(padding) == padding).all()


def test_predictions_follow_the_order_of_the_input(tmp_path):
    rows = [{"text": "x " * (1 + i * 7 % 13), "label": "ab"[i % 2]} for i in range(30)]
    data = prepared(write(tmp_path / "train.csv", rows), tmp_path, predict=str(write(tmp_path / "new.csv", rows)))
    order = [int(i) for batch in data.predict_dataloader()[0] for i in batch["index"] if i >= 0]
    assert order != sorted(order)  # by length
    assert sorted(order) == list(range(30))


def test_glue_tasks_by_name(tmp_path):
    import datasets

    copy = tmp_path / "glue"
    parts = ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched")
    features = datasets.Features(
        premise=datasets.Value("string"),
        hypothesis=datasets.Value("string"),
        label=datasets.ClassLabel(names=["entailment", "neutral", "contradiction"]),
    )
    (copy / "mnli").mkdir(parents=True)
    for part in parts:
        labels = [-1 if part.startswith("test") else i % 3 for i in range(24)]
        columns = {
            "premise": [f"p {i}" for i in range(24)],
            "hypothesis": [f"h {i}" for i in range(24)],
            "label": labels,
        }
        datasets.Dataset.from_dict(columns, features=features).to_parquet(copy / "mnli" / f"{part}.parquet")
    files = "".join(f"  - split: {part}\n    path: mnli/{part}.parquet\n" for part in parts)
    (copy / "README.md").write_text(f"---\nconfigs:\n- config_name: mnli\n  data_files:\n{files}---\n")
    data = prepared(copy, tmp_path / "cache", task="mnli")
    assert data.manifest["text_columns"] == ["premise", "hypothesis"]
    assert data.scheme.names == ("contradiction", "entailment", "neutral")
    assert (len(data.val_dataloader()), len(data.predict_dataloader())) == (2, 2)


def test_splits_of_a_dataset_on_the_hub(tmp_path, monkeypatch):
    import datasets

    for name, parts in {"both": {"train": 60, "validation": 12, "test": 18}, "one": {"train": 60}}.items():
        for part, count in parts.items():
            columns = {"text": [f"{part} {i}" for i in range(count)], "label": [i % 3 for i in range(count)]}
            features = datasets.Features(
                text=datasets.Value("string"), label=datasets.ClassLabel(names=["x", "y", "z"])
            )
            (tmp_path / name).mkdir(exist_ok=True)
            datasets.Dataset.from_dict(columns, features=features).to_parquet(tmp_path / name / f"{part}.parquet")
    # There is no hub here: its client reads the folders.
    monkeypatch.setattr(prepare, "is_file_name", lambda name: False)
    both, one = str(tmp_path / "both"), str(tmp_path / "one")

    def counts(**sources):
        found = prepared(sources.pop("train"), tmp_path / "cache", **sources).manifest
        assert found["labels"] == ["x", "y", "z"]
        return found["counts"]

    assert counts(train=both) == {"train": 60, "val": 12, "test": 18}
    assert counts(train=one) == {"train": 48, "val": 6, "test": 6}
    assert counts(train=one, validation=both, predict=both) == {"train": 60, "val": 12, "predict": 18}
    assert counts(train=one, test=both) == {"train": 54, "val": 6, "test": 18}
    for split in ("validation", "test", "predict"):
        hub = "validation" if split == "validation" else "test"
        with pytest.raises(DataError, match=rf"has no split '{hub}'. HINT: set data\.{split} to"):
            counts(train=both, **{split: one})


def test_records_of_the_hub_without_a_label_are_no_class(tmp_path, monkeypatch):
    import datasets

    classes = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["x", "none"]))
    (tmp_path / "data").mkdir()
    for part, labels in {"train": [0, 1, -1] * 20, "validation": [0, 1] * 6, "test": [-1] * 6}.items():
        columns = {"text": [f"{part} {i}" for i in range(len(labels))], "label": labels}
        datasets.Dataset.from_dict(columns, features=classes).to_parquet(tmp_path / "data" / f"{part}.parquet")
    monkeypatch.setattr(prepare, "is_file_name", lambda name: False)
    train = str(tmp_path / "data")
    with pytest.raises(DataError, match=r"train data has no label in records 3, 6, .*HINT: .*drop_empty"):
        prepared(train, tmp_path / "cache")
    found = prepared(train, tmp_path / "cache", clean="drop_empty", test_fraction=0.0).manifest
    assert (found["counts"], found["labels"]) == ({"train": 40, "val": 12}, ["none", "x"])


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"a": "x", "b": "y", "c": "z"}], {}, r"which of the columns a, b, c hold the text"),
        ([{"text": "x", "kind": "y"}], {}, r"no column 'label'"),
        ([{"text": "x", "label": "y"}], {}, r"labels are all \{'y'\}"),
        ([{"text": "x", "label": "y"}], {"problem": "regression"}, r"not numbers, the first in record 1: 'y'"),
    ],
)
def test_unusable_tables_are_refused(tmp_path, rows, options, message):
    path = write(tmp_path / "train.csv", rows * 4)
    with pytest.raises(DataError, match=f"{message}.*HINT"):
        data_module(path, tmp_path / "cache", val_fraction=0, test_fraction=0, **options).prepare_data()
    assert not list((tmp_path / "cache").glob("*"))


def test_a_label_unseen_in_training_is_refused(tmp_path):
    train = write(tmp_path / "train.csv", ROWS)
    val = write(tmp_path / "val.csv", [{"text": "x", "label": "violet"}, {"text": "y", "label": "red"}])
    with pytest.raises(
        DataError, match=r"val data has 1 labels.*'violet' \(1\).*HINT: the labels are blue, green, red"
    ):
        data_module(train, tmp_path, validation=str(val)).prepare_data()
    merged = prepared(train, tmp_path, validation=str(val), label_map={"violet": "red"})
    assert merged.manifest["counts"]["val"] == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "no record"),
        ("t.csv", b"text,label\na,b,c\n", "record 1 does not have as many fields"),
        ("t.csv", b"text,label\n\xff\xfe,b\n", "is not UTF-8"),
        ("t.json", b"[1, 2]", "not a list of records"),
        ("t.jsonl", b"{", "cannot be read"),
    ],
)
def test_unreadable_files_are_refused(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{message}.*HINT"):
        data_module(path, tmp_path / "cache").prepare_data()


@pytest.mark.parametrize(
    "option", [{"problem": "x"}, {"task": "x"}, {"class_weights": "x"}, {"max_length": 2}, {"val_fraction": 0.7}]
)
def test_wrong_options_are_refused(tmp_path, option):
    with pytest.raises(MisconfigurationException, match=rf"data\.{next(iter(option))}=.*HINT"):
        data_module(tmp_path, tmp_path, **option)


def test_lengths_over_the_models_are_refused(tmp_path):
    options = ["--config", "tiny.yaml", "--max_length", "600", "--run_dir", str(tmp_path), "--cache_dir", str(tmp_path)]
    with pytest.raises(MisconfigurationException, match=r"data\.max_length=600.*512 position embeddings"):
        RecipeCLI(RECIPE, [*options, "--strategy", "auto", "--max_train_samples", "64"])


def test_merchants_of_the_splits_differ_and_all_categories_occur():
    splits = {split: transactions(3000, split) for split in ("train", "val", "test")}
    for rows in splits.values():
        assert {row["category"] for row in rows} == set(CATEGORIES)
    assert transactions(5, "val") == transactions(5, "val")
    words = [{word for row in rows for word in row["text"].split()} for rows in splits.values()]
    common = words[0] & words[1]
    assert 50 < len({word for word in common if word.isalpha()}) < 400  # what shops are called, towns, channels
