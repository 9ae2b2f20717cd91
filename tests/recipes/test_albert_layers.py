# SPDX-License-Identifier: Apache-2.0
"""Computing ALBERT only where needed changes no number; LAMB against its formula."""

import copy

import pytest
import torch
from transformers import AlbertConfig, AlbertForMaskedLM, AutoModelForSequenceClassification

from lightning_sagemaker.recipes._common.modules import losses
from lightning_sagemaker.recipes._common.modules.albert import encode, place_norms
from lightning_sagemaker.recipes._common.modules.optimization import Optimization
from lightning_sagemaker.recipes._common.modules.speed import fuse

SIZES = {"vocab_size": 90, "embedding_size": 16, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}


def albert(**options):
    torch.manual_seed(0)
    return AlbertForMaskedLM(AlbertConfig(**{**SIZES, "num_hidden_layers": 3, **options}))


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 90, (4, 20), generator=generator)
    positions = torch.stack([torch.randperm(20, generator=generator)[:6].sort().values for _ in range(4)])
    return ids, torch.arange(20).expand(4, 20) // 11, positions


@pytest.mark.parametrize(
    "options", [{}, {"num_hidden_groups": 3}, {"inner_group_num": 2}], ids=["shared", "own", "inner"]
)
def test_hidden_states_and_gradients_are_transformers(batch, options):
    ids, types, positions = batch
    model = albert(**options)
    whole = model.albert(input_ids=ids, token_type_ids=types).last_hidden_state
    expected = whole.gather(1, positions[:, :, None].expand(-1, -1, 32))
    found = encode(model.albert, ids, types, positions)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    gradients = []
    for hidden in (expected, found):
        model.zero_grad()
        hidden.sin().sum().backward()
        gradients.append([p.grad.clone() for p in model.albert.parameters() if p.grad is not None])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_fusing_changes_no_number_and_no_parameter(batch):
    ids, types, _ = batch
    model = albert()
    fused = copy.deepcopy(model)
    assert fuse(fused) > 1
    found, expected = (m(input_ids=ids, token_type_ids=types).logits for m in (fused, model))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert list(fused.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize("classes", [2, 50, 100_000])
def test_cross_entropy_is_torchs(classes, monkeypatch):
    monkeypatch.setattr(losses, "_CHUNK_BYTES", 4 * classes * 3)  # three rows at a time
    torch.manual_seed(0)
    scores, labels = 5 * torch.randn(11, classes), torch.randint(0, classes, (11,))
    labels[4] = losses.IGNORED
    weights, found = torch.rand(11), []
    for mine in (False, True):
        logits = scores.clone().requires_grad_()
        if mine:
            each, right = losses.cross_entropy(logits * 1, labels)
            assert torch.equal(right, scores.argmax(dim=1) == labels)
        else:
            each = torch.nn.functional.cross_entropy(logits, labels, reduction="none", ignore_index=losses.IGNORED)
        (each * weights).sum().backward()
        found.append((each.detach(), logits.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_norms_before_each_part(batch):
    ids, types, positions = batch
    model = albert(pre_layer_norm=True)
    after = model.albert(input_ids=ids, token_type_ids=types).last_hidden_state
    place_norms(model)
    mask = torch.ones_like(ids)
    before = model.albert(input_ids=ids, token_type_ids=types, attention_mask=mask).last_hidden_state
    assert (before - after).abs().max() > 0.01
    # By hand, with the modules of the model.
    layer = model.albert.encoder.albert_layer_groups[0].albert_layers[0]
    hidden = model.albert.encoder.embedding_hidden_mapping_in(model.albert.embeddings(ids, token_type_ids=types))
    for _ in range(3):
        attention = layer.attention
        normed = attention.LayerNorm(hidden)
        parts = (attention.query, attention.key, attention.value)
        heads = [part(normed).view(4, 20, 4, 8).transpose(1, 2) for part in parts]
        scores = (heads[0] @ heads[1].transpose(2, 3) / 8**0.5).softmax(dim=-1)
        hidden = hidden + attention.dense((scores @ heads[2]).transpose(1, 2).reshape(4, 20, 32))
        hidden = hidden + layer.ffn_output(layer.activation(layer.ffn(layer.full_layer_layer_norm(hidden))))
    expected = torch.nn.functional.layer_norm(hidden, (32,))
    torch.testing.assert_close(before, expected, atol=1e-5, rtol=1e-5)
    chosen = encode(model.albert, ids, types, positions)
    torch.testing.assert_close(
        chosen, expected.gather(1, positions[:, :, None].expand(-1, -1, 32)), atol=1e-5, rtol=1e-5
    )


def test_padding_does_not_matter_with_norms_before():
    model = AutoModelForSequenceClassification.from_config(
        AlbertConfig(**SIZES, num_hidden_layers=2, pre_layer_norm=True, classifier_dropout_prob=0)
    )
    place_norms(model)
    ids = torch.randint(5, 90, (2, 10))
    mask = torch.ones_like(ids)
    padded = torch.cat([ids, torch.zeros(2, 5, dtype=torch.long)], dim=1)
    expected = model(input_ids=ids, attention_mask=mask).logits
    found = model(input_ids=padded, attention_mask=torch.cat([mask, torch.zeros(2, 5, dtype=torch.long)], dim=1)).logits
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_lamb_is_the_papers_formula():
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 5)
    weight, bias = (parameter.detach().clone().double() for parameter in layer.parameters())
    build = Optimization(optimizer="lamb", learning_rate=0.1, weight_decay=0.3, schedule="constant").build(layer, 10)
    optimizer, moments = build["optimizer"], [[torch.zeros_like(p), torch.zeros_like(p)] for p in (weight, bias)]
    for step in range(3):
        layer.weight.grad, layer.bias.grad = torch.full((5, 6), 0.1 * (step + 1)), torch.linspace(-1, 1, 5)
        optimizer.step()
        for parameter, gradient, (m, v), decay in (
            (weight, layer.weight.grad, moments[0], 0.3),
            (bias, layer.bias.grad, moments[1], 0.0),
        ):
            gradient = gradient.double()
            m.mul_(0.9).add_(0.1 * gradient)
            v.mul_(0.999).add_(0.001 * gradient**2)
            update = m / (v.sqrt() + 1e-6) + decay * parameter
            parameter -= 0.1 * parameter.norm() / update.norm() * update
    torch.testing.assert_close(layer.weight.double(), weight, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(layer.bias.double(), bias, atol=1e-5, rtol=1e-4)


def test_polynomial_decay_ends_where_it_should():
    layer = torch.nn.Linear(2, 2)
    options = {"learning_rate": 0.00176, "end_learning_rate": 3e-5, "schedule": "polynomial", "warmup_steps": 10}
    build = Optimization(**options).build(layer, 100)
    optimizer, schedule, rates = build["optimizer"], build["lr_scheduler"]["scheduler"], []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[10] == max(rates) == pytest.approx(0.00176)
    assert rates[55] == pytest.approx((0.00176 + 3e-5) / 2, rel=1e-6)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(3e-5)
