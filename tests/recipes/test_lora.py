# SPDX-License-Identifier: Apache-2.0
"""LoRA in every recipe: small checkpoints, exact resume, merged exports, equal on two processes; peft says what is right."""

import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from safetensors.torch import load_file
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
)

from lightning_sagemaker import SMDDPStrategy, SMPShardedStrategy
from lightning_sagemaker.recipes._common.modules.lora import LoRA, add_adapters, check_entry, checkpoint_entry, merged
from lightning_sagemaker.recipes.albert_mlm.module import SIZES, AlbertMLM
from lightning_sagemaker.recipes.bert_qa.module import QuestionAnswerer
from lightning_sagemaker.recipes.sequence_classification.module import SequenceClassifier
from tests.conftest import ROOT, Runs, fork_ranks
from tests.recipes import lora_worker
from tests.recipes.lora_worker import ADAPTED, RECIPES, fit

peft = pytest.importorskip("peft")

KINDS = {
    "albert": (AlbertMLM, AutoModelForPreTraining),
    "questions": (QuestionAnswerer, AutoModelForQuestionAnswering),
    "classes": (SequenceClassifier, AutoModelForSequenceClassification),
}
NAMES = [pytest.param(name, marks=() if name == "classes" else pytest.mark.slow) for name in RECIPES]
SIZE = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, text_file):
    """Folder of a base model of each recipe, a run on it, the same run resumed, and on two ranks with SMDDP."""
    base = tmp_path_factory.mktemp("lora")
    torch.set_num_threads(1)

    def make(key):
        name, what = key
        if what != "base":
            runs[name, "base"]
        if what == "two":
            fork_ranks(Path(lora_worker.__file__), base, text_file, name, processes=2, PYTHONPATH=str(ROOT))
        elif what == "resumed":  # as after a kill behind the first validation, after which best.ckpt was written
            start = runs[name, "one"] / "checkpoints" / "best.ckpt"
            again = base / "resumed" / name / "checkpoints" / "best.ckpt"
            again.parent.mkdir(parents=True)
            again.write_bytes(start.read_bytes())
            fit(name, base, text_file, what, "--resume", "always", *ADAPTED)
        else:
            fit(name, base, text_file, what, *(ADAPTED if what == "one" else ["--max_steps", 1]))
        return base / what / name

    runs = Runs(make)
    return runs


def checkpoint(folder, name="last"):
    return torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)


def history(folder):
    lines = (folder / "output" / "history" / "metrics.csv").read_text().splitlines()
    rows = [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]
    return {(row["step"], name): float(row[name]) for row in rows for name in ("loss", "val_loss") if row.get(name)}


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_holds_what_is_trained(runs, name):
    full, small = (runs[name, what] / "checkpoints" / "last.ckpt" for what in ("base", "one"))
    assert small.stat().st_size < 0.3 * full.stat().st_size  # a model this small has little below its head
    content = checkpoint(runs[name, "one"])
    parts = {"lora_A": 0, "lora_B": 0, "head": 0}
    for key in content["state_dict"]:
        found = [part for part in ("lora_A", "lora_B") if part in key] or ["head"]
        parts[found[0]] += 1
        head = ("model.predictions.", "model.sop_", "model.qa_outputs.", "model.classifier.", "null_threshold")
        assert found != ["head"] or key.startswith(head), key
    assert parts["lora_A"] == parts["lora_B"] > 2
    assert parts["head"]
    again = ("null_threshold", "decoder.bias")  # a buffer, and another name of predictions.bias
    parameters = [key for key in content["state_dict"] if not key.endswith(again)]
    assert len(content["optimizer_states"][0]["state"]) == len(parameters)


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_equals_one_that_was_not_interrupted(runs, name):
    whole, resumed = checkpoint(runs[name, "one"]), checkpoint(runs[name, "resumed"])
    assert checkpoint(runs[name, "one"], "best")["global_step"] < whole["global_step"] == resumed["global_step"]
    assert all(torch.equal(resumed["state_dict"][key], value) for key, value in whole["state_dict"].items())


@pytest.mark.parametrize("name", NAMES)
def test_the_export_is_a_plain_model_that_computes_the_same(runs, name):
    kind, auto = KINDS[name]
    folder = runs[name, "one"]
    module = kind.load_from_checkpoint(folder / "checkpoints" / "best.ckpt").eval()
    loaded, report = auto.from_pretrained(folder / "model", output_loading_info=True)
    assert not any(report.values())
    base = load_file(runs[name, "base"] / "model" / "model.safetensors")
    exported = load_file(folder / "model" / "model.safetensors")
    assert base.keys() == exported.keys()
    changed = {
        key
        for key, value in base.items()
        if value.shape != exported[key].shape or not torch.equal(value, exported[key])
    }
    assert any(key.endswith("query.weight") for key in changed)
    assert not any("embeddings" in key or ("LayerNorm" in key and not key.startswith("predictions")) for key in changed)
    tokens = AutoTokenizer.from_pretrained(folder / "model")(["a b c d", "e f g h"], return_tensors="pt")
    with torch.no_grad():
        wanted, found = loaded.eval()(**tokens), module.model(**tokens)
    for key in wanted:
        torch.testing.assert_close(found[key], wanted[key], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_with_smddp_equal_one(runs, name):
    one, two = history(runs[name, "one"]), history(runs[name, "two"])
    assert len(one) >= 4
    assert two == pytest.approx(one, rel=1e-4)
    state = checkpoint(runs[name, "two"])["state_dict"]
    assert state.keys() == checkpoint(runs[name, "one"])["state_dict"].keys()


@pytest.mark.parametrize("lora", [LoRA(4), LoRA(3, alpha=2.0, dropout=0.5, target_modules="query,value")])
@pytest.mark.parametrize(
    "make",
    [
        lambda: BertForSequenceClassification(BertConfig(**SIZE)),
        lambda: BertForQuestionAnswering(BertConfig(**SIZE)),
        lambda: AlbertForMaskedLM(AlbertConfig(embedding_size=16, **SIZE)),
    ],
)
def test_shapes_outputs_and_merged_weights_are_those_of_peft(make, lora):
    torch.manual_seed(0)
    model = make().eval()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    add_adapters(model, lora)
    torch.manual_seed(1)
    adapters = {name: torch.randn_like(value) for name, value in model.state_dict().items() if ".lora_" in name}
    model.eval().load_state_dict(adapters, strict=False)

    theirs = make().eval()
    theirs.load_state_dict(start)
    targets = ["query", "value"] if lora.target_modules else "all-linear"
    exclude = None if lora.target_modules else ["qa_outputs", "classifier", "decoder", "predictions.dense"]
    settings = peft.LoraConfig(
        r=lora.rank, lora_alpha=lora.scale * lora.rank, target_modules=targets, exclude_modules=exclude
    )
    wrapped = peft.get_peft_model(theirs, settings)
    prefix = "base_model.model."
    known = {name.removeprefix(prefix): value.shape for name, value in wrapped.state_dict().items() if ".lora_" in name}
    assert known == {name: value.shape for name, value in adapters.items()}
    wrapped.load_state_dict({prefix + name: value for name, value in adapters.items()}, strict=False)
    tokens = torch.randint(0, 60, (2, 7))
    with torch.no_grad():
        for found, wanted in zip(model(tokens).values(), wrapped.eval()(tokens).values(), strict=True):
            torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    whole = wrapped.merge_and_unload().state_dict()
    ours = merged(model.state_dict(), lora)
    assert ours.keys() == whole.keys()
    for name, value in whole.items():
        torch.testing.assert_close(ours[name], value, atol=1e-5, rtol=1e-5, msg=name)


@pytest.mark.parametrize(
    "make",
    [
        lambda: BertForSequenceClassification(BertConfig()),
        lambda: AlbertForMaskedLM(AlbertConfig(vocab_size=30000, **SIZES["base"])),
    ],
)
def test_of_published_sizes_a_twentieth_is_trained(make):
    with torch.device("meta"):
        model = make()
    whole = sum(parameter.numel() for parameter in model.parameters())
    with torch.device("meta"):
        add_adapters(model, LoRA())
    assert 0 < sum(p.numel() for p in model.parameters() if p.requires_grad) <= 0.03 * whole


def test_another_base_or_rank_or_none_at_all_is_refused():
    mine = checkpoint_entry(LoRA(4), "abc")
    check_entry(mine, dict(mine))
    for found, said in (
        (None, "full model without adapters. HINT: .*--model.pretrained"),
        (checkpoint_entry(LoRA(4), "abd"), "on other base weights.*HINT"),
        (checkpoint_entry(LoRA(8), "abc"), r"rank 8 \(now 4\). HINT"),
    ):
        with pytest.raises(MisconfigurationException, match=said):
            check_entry(found, mine)
    with pytest.raises(MisconfigurationException, match="adapters of rank 4 and no full model.*HINT"):
        check_entry(mine, None)


def test_what_cannot_be_meant_is_refused(monkeypatch):
    for options in ({"rank": 0}, {"alpha": -1.0}, {"dropout": 1.0}):
        with pytest.raises(MisconfigurationException, match=r"model\.lora\.rank=.*HINT"):
            LoRA(**options)
    with pytest.raises(MisconfigurationException, match=r"model\.lora and model\.freeze were both set.*HINT"):
        SequenceClassifier(lora=LoRA(), freeze="embeddings")
    with pytest.raises(MisconfigurationException, match=r"target_modules=quary was set.*similar names are query"):
        add_adapters(BertForQuestionAnswering(BertConfig(**SIZE)), LoRA(target_modules="quary"))
    for strategy in (SMPShardedStrategy(parameters={"tensor_parallel_degree": 2}), ModelParallelStrategy()):
        with pytest.raises(
            MisconfigurationException, match=r"model\.lora was set with \w+Strategy, which shards.*HINT"
        ):
            SequenceClassifier(lora=LoRA()).check_strategy(strategy)
    SequenceClassifier(lora=LoRA()).check_strategy(SMDDPStrategy())
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"needs peft, not installed here. HINT: pip install 'lightning-sagemaker\[lora"
    ):
        SequenceClassifier(lora=LoRA())


def test_adapters_alone_are_not_a_model_to_start_from(runs, text_file):
    start = runs["classes", "one"] / "checkpoints" / "best.ckpt"
    with pytest.raises(MisconfigurationException, match="holds LoRA adapters and no full model. HINT"):
        fit("classes", start.parents[3], text_file, "refused", "--pretrained", start)
