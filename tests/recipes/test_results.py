# SPDX-License-Identifier: Apache-2.0
"""What the recipes learn and leave: scores on held-out data, models that serve, runs that go on."""

import csv
import importlib.util
import io
import json
import subprocess
import sys

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from lightning_sagemaker import cli
from lightning_sagemaker.launch import run_local_cluster
from lightning_sagemaker.recipe_table import RECIPES
from lightning_sagemaker.recipes._common.cli.recipe_cli import RecipeCLI
from lightning_sagemaker.recipes.bert_qa.facts import fact_articles
from lightning_sagemaker.recipes.bert_qa.recipe import RECIPE as QUESTIONS
from lightning_sagemaker.recipes.bert_qa.squad import nested_questions
from lightning_sagemaker.recipes.sequence_classification.recipe import RECIPE as CLASSIFICATION
from tests.conftest import ROOT, run_bounded


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    run = tmp_path_factory.mktemp("classifier")
    options = ["--config", "tiny.yaml", "--strategy", "auto", "--max_epochs", "2"]
    RecipeCLI(CLASSIFICATION, [*options, "--run_dir", str(run), "--cache_dir", str(run / "cache")])
    return run


@pytest.fixture(scope="module")
def answerer(tmp_path_factory):
    run = tmp_path_factory.mktemp("answerer")
    options = ["--config", "tiny.yaml", "--strategy", "auto", "--max_epochs", "1"]
    RecipeCLI(QUESTIONS, [*options, "--run_dir", str(run), "--cache_dir", str(run / "cache")])
    return run


def metrics(run):
    return json.loads((run / "output" / "metrics.json").read_text())


def test_classifier_knows_merchants_that_it_has_never_seen(classifier):
    # The most frequent category has 37% of the lines.
    assert metrics(classifier)["val_accuracy"] > 0.9
    content = json.loads((classifier / "output" / "report-validate.json").read_text())
    assert sum(map(sum, content["confusion"])) == 1000
    assert {"confusion-validate.png", "curves.png"} <= {path.name for path in (classifier / "output").glob("*.png")}
    assert "Most confused" in (classifier / "output" / "report-validate.html").read_text()
    found = json.loads((classifier / "model" / "config.json").read_text())["calibration"]
    assert found == {"temperature": content["calibration"]["temperature"]}
    assert content["calibration"]["with_temperature"]["ece"] < 0.05


def test_each_figure_is_named_by_its_split(classifier):
    found = metrics(classifier)
    assert {"train_loss", "train_accuracy", "val_loss", "val_accuracy"} <= found.keys()
    assert not {"loss", "accuracy"} & found.keys()
    card = (classifier / "model" / "README.md").read_text()
    assert "| metric | train | val |" in card
    assert f"| accuracy | {found['train_accuracy']:.6g} | {found['val_accuracy']:.6g} |" in card


def test_probabilities_with_the_temperature_where_asked(classifier, tmp_path):
    from transformers import pipeline

    rows = [
        ["Note", "index", "text", "prediction"],
        ["7", "x", "CARD ZZYXX SUPERMARKET ASHBY 12.00", "?"],
        ["", "y", "RENT, MAY", "?"],
    ]
    with (tmp_path / "new.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    options = [
        "predict",
        "--pretrained",
        classifier / "model",
        "--predict_file",
        tmp_path / "new.csv",
        "--strategy",
        "auto",
    ]
    options += ["--run_dir", tmp_path / "run", "--cache_dir", tmp_path / "cache", "--model.temperature", "auto"]
    options += ["--precision", "32-true"]  # as it is served
    RecipeCLI(CLASSIFICATION, [str(word) for word in options])
    with (tmp_path / "run" / "output" / "predictions.csv").open(newline="") as file:
        header, *found = csv.reader(file)
    assert header[:5] == [*rows[0], "new_prediction"]
    assert [row[:4] for row in found] == rows[1:]
    raw = pipeline("text-classification", model=str(classifier / "model"))
    heat = raw.model.config.calibration["temperature"]
    body = {"inputs": [row[2] for row in rows[1:]], "parameters": {"calibrated": True, "top_k": None}}
    served_now = request(classifier / "model", body)
    for row, answers, text in zip(found, served_now, body["inputs"], strict=True):
        logits = {one["label"]: one["score"] for one in raw(text, top_k=None, function_to_apply="none")}
        chances = dict(zip(logits, (torch.tensor(list(logits.values())) / heat).softmax(dim=0).tolist(), strict=True))
        shown = {name.removeprefix("p_"): float(value) for name, value in zip(header[5:], row[5:], strict=True)}
        assert shown == pytest.approx(chances, abs=1e-4)
        assert {one["label"]: one["score"] for one in answers} == pytest.approx(chances, abs=1e-4)


@pytest.mark.slow
def test_answerer_finds_facts_about_towns_that_it_has_never_seen(answerer):
    # Always saying "no answer" gives 27.8.
    assert metrics(answerer)["val_f1"] > 65
    for name in ("predictions.json", "nbest_predictions.json", "null_odds.json"):
        assert len(json.loads((answerer / "output" / name).read_text())) == 600


def served(model):
    """The four functions of the serving code, as SageMaker's toolkit loads them."""
    spec = importlib.util.spec_from_file_location("inference", model / "code" / "inference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def request(model, body):
    module = served(model)
    loaded = module.model_fn(str(model))
    answer = module.output_fn(module.predict_fn(module.input_fn(json.dumps(body)), loaded))
    with pytest.raises(ValueError, match="application/json"):
        module.input_fn("x", "text/csv")
    return json.loads(answer)


def test_exported_classifier_serves_a_request(classifier):
    from transformers import pipeline

    line = "CARD ZZYXX SUPERMARKET ASHBY 12.00"
    expected = pipeline("text-classification", model=str(classifier / "model"))(line)
    answer = request(classifier / "model", {"inputs": line})
    assert answer[0]["label"] == expected[0]["label"] == "groceries"
    assert answer[0]["score"] == pytest.approx(expected[0]["score"])
    assert len(request(classifier / "model", {"inputs": [line, line], "parameters": {"top_k": 2}})[1]) == 2
    card = (classifier / "model" / "README.md").read_text()
    assert all(words in card for words in ("| accuracy |", "learning_rate", "transactions", "lightning-sagemaker |"))


@pytest.mark.slow
def test_exported_answerer_serves_a_request(answerer):
    context = "Tonin is known for its silk. " * 60 + "Its tower is 50 metres tall."
    inputs = {"question": "How tall is the tower of Tonin?", "context": context}
    answer = request(answerer / "model", {"inputs": inputs})
    assert answer["answer"] == context[answer["start"] : answer["end"]]
    assert "50" in answer["answer"]
    assert 0 < answer["score"] <= 1
    nothing = {"question": "Who is the mayor of Tonin?", "context": "Its tower is 50 metres tall."}
    body = {"inputs": [nothing, nothing], "parameters": {"handle_impossible_answer": True}}
    assert [entry["answer"] for entry in request(answerer / "model", body)] == ["", ""]


@pytest.mark.slow
def test_serving_finds_what_validation_found(answerer):
    """The same answers as the recipe's own predictions, for questions whose context fits one window."""
    predictions = json.loads((answerer / "output" / "predictions.json").read_text())
    odds = json.loads((answerer / "output" / "null_odds.json").read_text())
    module = served(answerer / "model")
    loaded = module.model_fn(str(answerer / "model"))
    questions, compared = nested_questions(fact_articles(12, "val")), 0
    for question in questions:
        inputs = {"question": question.question, "context": question.context}
        answer = module.predict_fn({"inputs": inputs, "parameters": {"max_answer_len": 10}}, loaded)
        if odds[question.id] < 0 and predictions[question.id]:
            assert answer["answer"] == predictions[question.id]
            compared += 1
    assert compared > 10


@pytest.mark.slow
def test_one_recipe_starts_from_the_checkpoint_of_another(answerer, tmp_path):
    options = ["--config", "tiny.yaml", "--strategy", "auto", "--run_dir", tmp_path, "--cache_dir", tmp_path / "cache"]
    start = answerer / "checkpoints" / "last.ckpt"
    options += ["--pretrained", start, "--max_steps", 1, "--trainer.max_epochs", -1, "--trainer.limit_val_batches", 0]
    cli_ = RecipeCLI(CLASSIFICATION, [str(word) for word in options], run=False)
    cli_.trainer.fit(cli_.model, cli_.datamodule)
    vocabulary = torch.load(start, weights_only=True)["state_dict"]["model.bert.embeddings.word_embeddings.weight"]
    assert cli_.datamodule.vocab_size == len(vocabulary)
    moved = (cli_.model.model.bert.embeddings.word_embeddings.weight.detach() - vocabulary).abs().max()
    assert 0 < moved < 0.01


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(tmp_path):
    def run(folder, steps, *more):
        options = ["--config", "tiny.yaml", "--strategy", "auto", "--run_dir", tmp_path / folder, "--max_steps", steps]
        options += ["--cache_dir", tmp_path / "cache", "--trainer.max_epochs", -1, "--log_every_n_steps", 1]
        options += ["--max_train_samples", 160, "--max_eval_samples", 40, "--schedule", "constant", "--dropout", 0]
        made = RecipeCLI(CLASSIFICATION, [str(word) for word in options], run=False)
        often = ModelCheckpoint(tmp_path / folder, "{step}", every_n_train_steps=1, save_top_k=-1)
        made.trainer.callbacks.append(often)
        made.trainer.fit(made.model, made.datamodule, **dict(more))
        with (tmp_path / folder / "output" / "history" / "metrics.csv").open() as rows:
            losses = {int(row["step"]): float(row["loss"]) for row in csv.DictReader(rows) if row["loss"]}
        return losses, torch.load(tmp_path / folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]

    whole, weights = run("whole", 8)  # five steps are an epoch
    run("short", 3)
    saved = {torch.load(path, weights_only=True)["global_step"]: path for path in (tmp_path / "whole").glob("*.ckpt")}
    middle, end = saved[3], tmp_path / "short" / "checkpoints" / "last.ckpt"
    # The first was saved in a hook of the third batch, before its row was logged; the second after it.
    for number, (start, first_row) in enumerate(((middle, 3), (end, 4))):
        losses, again = run(f"again-{number}", 8, ("ckpt_path", start))
        assert losses == pytest.approx({step: whole[step] for step in range(first_row, 9)}, abs=1e-6)
        for name, value in weights.items():
            torch.testing.assert_close(again[name], value, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("precision", [pytest.param("bf16-mixed", marks=pytest.mark.slow), "bf16-true"])
def test_bfloat16_trains_and_clips(tmp_path, precision):
    options = ["--config", "tiny.yaml", "--strategy", "auto", "--run_dir", tmp_path, "--cache_dir", tmp_path / "cache"]
    options += ["--max_train_samples", 320, "--max_eval_samples", 20, "--precision", precision, "--max_epochs", 2]
    options += ["--max_grad_norm", 1e-9]
    made = RecipeCLI(CLASSIFICATION, [str(word) for word in options], run=False)
    norms = []

    def record(optimizer, *_):
        gradients = [p.grad.float() for group in optimizer.param_groups for p in group["params"]]
        norms.append(torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt().item())

    class Recorder(Callback):
        def on_train_start(self, trainer, pl_module):
            trainer.optimizers[0].register_step_post_hook(record)

    made.trainer.callbacks.append(Recorder())
    made.trainer.fit(made.model, made.datamodule)
    assert len(norms) == 20
    assert 0 < max(norms) < 1e-8


def test_steps_fall_as_the_batch_grows(tmp_path):
    options = ["--config", "tiny.yaml", "--strategy", "auto", "--run_dir", tmp_path, "--cache_dir", tmp_path / "cache"]
    options += ["--max_train_samples", 200, "--max_eval_samples", 20, "--total_examples", 96]
    options += ["--per_device_train_batch_size", 8, "--gradient_accumulation_steps", 4]
    RecipeCLI(CLASSIFICATION, [str(word) for word in options])
    assert metrics(tmp_path)["steps"] == 96 // (8 * 4)


@pytest.mark.slow
def test_two_simulated_hosts_call_the_script_as_sagemaker_does(tmp_path):
    output = io.StringIO()
    script = ROOT / "recipes" / "sequence_classification" / "train.py"
    options = ["--config", "tiny.yaml", "--max_steps", "3", "--trainer.max_epochs", "-1", "--max_train_samples", "200"]
    options += ["--max_eval_samples", "20", "--data.group_by_length", "True", "--cache_dir", str(tmp_path / "cache")]
    job = run_local_cluster(
        [sys.executable, str(script), *options],
        hosts=2,
        distribution="smddp",
        root=tmp_path / "job",
        timeout=200,
        output=output,
    )
    assert job.returncode == 0, output.getvalue()[-6000:]
    assert (job.root / "algo-1" / "model" / "config.json").is_file()
    assert (job.root / "algo-1" / "output" / "data" / "metrics.json").is_file()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "bert-qa" else pytest.mark.slow) for name in RECIPES]
)
def test_a_copy_of_each_recipe_prints_its_configuration(name, tmp_path, capsys):
    assert cli.main(["ls"]) == 0
    assert name in capsys.readouterr().out
    copy = tmp_path / "mine"
    assert cli.main(["cp", name, str(copy)]) == 0
    result = run_bounded(
        [sys.executable, str(copy / "train.py"), "fit", "--config", "tiny.yaml", "--print_config"], timeout=60
    )
    assert result.returncode == 0, result.stdout[-3000:]
    assert "learning_rate:" in result.stdout
    assert cli.main(["cp", name, str(copy)]) == 2
    assert cli.main(["cp", "absent", str(tmp_path / "other")]) == 2


def test_recipes_are_imported_by_other_lightning_code():
    code = (
        "from lightning_sagemaker.recipes.albert_mlm.module import AlbertMLM;"
        "from lightning_sagemaker.recipes.bert_qa.module import QuestionAnswerer;"
        "from lightning_sagemaker.recipes.sequence_classification.module import SequenceClassifier;"
        "print(AlbertMLM(size='tiny').optimization.optimizer, QuestionAnswerer().hparams.n_best_size)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert result.stdout.split() == ["adamw", "20"]
