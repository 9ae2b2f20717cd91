# SPDX-License-Identifier: Apache-2.0
import pytest
import transformers
from torch import nn

from lightning_sagemaker.parallel.degrees import ParallelConfigError
from lightning_sagemaker.parallel.plans import COLUMNS, ROWS, count_own_heads, tensor_plan

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 50,
}
DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 50}
MODELS = {
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)),
    "roberta": lambda: transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**SIZES)),
    "albert": lambda: transformers.AlbertForMaskedLM(transformers.AlbertConfig(**SIZES, embedding_size=16)),
    "distilbert": lambda: transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(**DISTILBERT)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)),
}


@pytest.mark.parametrize(
    ("name", "columns", "rows"),
    [("bert", 8, 4), ("roberta", 8, 4), ("albert", 4, 2), ("distilbert", 8, 4), ("llama", 10, 4)],
)
def test_every_block_is_shared_and_nothing_else(name, columns, rows):
    module = nn.ModuleDict({"net": MODELS[name]()})
    plan = tensor_plan(module, 2)
    assert list(plan.values()).count(COLUMNS) == columns
    assert list(plan.values()).count(ROWS) == rows
    assert all(isinstance(module.get_submodule(path), nn.Linear) for path in plan)
    assert not any(part in path for path in plan for part in ("embed", "pooler", "classifier", "head", "vocab"))


@pytest.mark.parametrize("name", MODELS)
def test_attention_counts_its_own_heads(name):
    model = MODELS[name]()
    count_own_heads(model, tensor_plan(model, 2), 2)
    counts = {
        (key, value)
        for module in model.modules()
        for key, value in vars(module).items()
        if key in ("num_attention_heads", "n_heads", "num_heads", "all_head_size")
    }
    assert all(value == {"all_head_size": 16}.get(key, 2) for key, value in counts)
    assert model.config.num_attention_heads == 4


@pytest.mark.parametrize(
    ("module", "degree", "message"),
    [
        (MODELS["bert"](), 3, "num_attention_heads=4.*HINT"),
        (nn.Linear(2, 2), 2, "no transformers model.*HINT"),
        (
            transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2)),
            2,
            "no plan for gpt2.*HINT",
        ),
    ],
    ids=["heads", "plain", "gpt2"],
)
def test_what_cannot_be_shared_is_refused(module, degree, message):
    with pytest.raises(ParallelConfigError, match=message):
        tensor_plan(module, degree)
