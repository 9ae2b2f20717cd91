# SPDX-License-Identifier: Apache-2.0
"""Computing the last layer at the first token changes neither logits nor gradients."""

import copy

import pytest
import torch
import transformers
from transformers import AutoModelForSequenceClassification, BertConfig, DistilBertConfig, ElectraConfig, RobertaConfig

from lightning_sagemaker.recipes._common.modules.first_token import first_token_only

SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", [BertConfig, RobertaConfig, ElectraConfig])
def test_logits_and_gradients_are_the_same(kind, attention):
    if kind is ElectraConfig and attention == "sdpa" and transformers.__version__ < "5":
        pytest.skip("transformers 4 has no such attention for ELECTRA")
    torch.manual_seed(0)
    config = kind(**SIZES, num_labels=3, hidden_dropout_prob=0, attention_probs_dropout_prob=0, classifier_dropout=0)
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation=attention)
    shorter = copy.deepcopy(model)
    assert first_token_only(shorter)
    shorter = copy.deepcopy(shorter)
    ids = torch.randint(5, 60, (4, 12))
    mask = (torch.arange(12) < torch.tensor([12, 5, 9, 1])[:, None]).long()
    gradients = []
    for one in (model, shorter):
        one.train()
        logits = one(input_ids=ids, attention_mask=mask).logits
        logits.sin().sum().backward()
        named = {name: p.grad for name, p in one.named_parameters() if p.grad is not None}
        gradients.append((logits, named))
    torch.testing.assert_close(gradients[1][0], gradients[0][0], atol=1e-6, rtol=1e-5)
    assert gradients[0][1].keys() == gradients[1][1].keys()
    for name, gradient in gradients[0][1].items():
        torch.testing.assert_close(gradients[1][1][name], gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_other_kinds_are_left_alone():
    config = DistilBertConfig(vocab_size=60, dim=32, n_layers=1, n_heads=4, hidden_dim=64)
    assert not first_token_only(AutoModelForSequenceClassification.from_config(config))
