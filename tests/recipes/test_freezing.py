# SPDX-License-Identifier: Apache-2.0
"""Which weights are trained; names that fit nothing are refused with near ones."""

import pytest
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from transformers import AlbertConfig, AlbertForMaskedLM, BertConfig, BertForSequenceClassification

from lightning_sagemaker.recipes._common.modules.freezing import freeze

SMALL = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}


def bert():
    return BertForSequenceClassification(BertConfig(**SMALL))


def albert():
    return AlbertForMaskedLM(AlbertConfig(embedding_size=8, **SMALL))


def frozen(model):
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def names(model, *prefixes):
    return {name for name, _ in model.named_parameters() if name.startswith(prefixes)}


@pytest.mark.parametrize(
    ("words", "prefixes"),
    [
        ("embeddings", ["bert.embeddings."]),
        ("2", ["bert.encoder.layer.0.", "bert.encoder.layer.1."]),
        ("embeddings, layers:1", ["bert.embeddings.", "bert.encoder.layer.0."]),
        (["bert.encoder.layer.2", "pooler"], ["bert.encoder.layer.2.", "bert.pooler."]),
        ("bert.*", ["bert."]),
    ],
)
def test_named_weights_are_frozen_and_counted(words, prefixes):
    model = bert()
    said = freeze(model, words)
    assert frozen(model) == names(model, *prefixes)
    count = sum(p.numel() for name, p in model.named_parameters() if name.startswith(tuple(prefixes)))
    assert f"frozen: {count:,} of {sum(p.numel() for p in model.parameters()):,} weights" in said


def test_parts_of_names_are_whole_parts():
    model = bert()
    freeze(model, "LayerNorm")
    assert frozen(model) == {name for name, _ in model.named_parameters() if ".LayerNorm." in name}
    with pytest.raises(MisconfigurationException, match="no weight of this model"):
        freeze(model, "embedding")


def test_a_tied_weight_is_frozen_by_any_of_its_names():
    model = albert()
    freeze(model, "predictions.decoder.weight")
    assert frozen(model) == {"albert.embeddings.word_embeddings.weight"}


@pytest.mark.parametrize(
    ("make", "words", "said"),
    [
        (bert, "embedings", r"model\.freeze=embedings was set.*similar names are embeddings"),
        (bert, "embeddings,bert.encoder.layers.0", r"similar names are bert\.encoder\.layer\.0"),
        (bert, "4", "this model has 3 layers. HINT: freeze 1 to 3"),
        (bert, "layers:0", "this model has 3 layers"),
        (bert, "*", "freezes all .* weights. HINT"),
        (albert, "layers:2", "the 3 layers of this model share their weights. HINT"),
    ],
)
def test_what_cannot_be_meant_is_refused(make, words, said):
    with pytest.raises(MisconfigurationException, match=said):
        freeze(make(), words)
