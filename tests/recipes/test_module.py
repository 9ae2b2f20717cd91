# SPDX-License-Identifier: Apache-2.0
import json
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from transformers import AlbertConfig

from lightning_sagemaker.recipes._common.modules.losses import IGNORED
from lightning_sagemaker.recipes._common.modules.optimization import parameter_groups
from lightning_sagemaker.recipes.albert_mlm.module import SIZES, AlbertMLM, PretrainingMetrics

VOCABULARY, LENGTH, NUM_MASKED = 101, 32, 5


@pytest.fixture
def module():
    return built(size="tiny")


def built(vocabulary=VOCABULARY, length=LENGTH, **options):
    """A module for data of which only two numbers matter."""
    module = AlbertMLM(**options)
    module._trainer = SimpleNamespace(
        datamodule=SimpleNamespace(vocab_size=vocabulary, sequence_length=length, sentence_order=False)
    )
    module.configure_model()
    module._trainer = None
    return module


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, VOCABULARY, (4, LENGTH), generator=generator)
    positions = torch.stack([torch.randperm(LENGTH, generator=generator)[:NUM_MASKED] for _ in range(4)])
    labels = torch.randint(5, VOCABULARY, (4, NUM_MASKED), generator=generator)
    return {"input_ids": ids, "positions": positions, "labels": labels, "index": torch.arange(4)}


def test_loss_and_gradients_equal_those_of_the_full_head(module, batch):
    labels = torch.full_like(batch["input_ids"], IGNORED).scatter(1, batch["positions"], batch["labels"])
    expected = module.model(input_ids=batch["input_ids"], labels=labels).loss
    expected.backward()
    gradients = [parameter.grad.clone() for parameter in module.model.parameters()]
    module.zero_grad()
    loss = module.training_step(batch, 0)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    for parameter, gradient in zip(module.model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-5)


def test_logits_are_computed_at_masked_positions_only(module, batch):
    shapes = []
    module.model.predictions.register_forward_hook(lambda _, __, logits: shapes.append(tuple(logits.shape)))
    module.training_step(batch, 0)
    assert shapes == [(4 * NUM_MASKED, VOCABULARY)]


def test_decoder_is_tied_and_initial_weights_do_not_depend_on_earlier_random_numbers(module):
    torch.rand(10)
    other = built(size="tiny")
    embeddings = module.model.albert.embeddings.word_embeddings.weight
    assert module.model.predictions.decoder.weight is embeddings
    torch.testing.assert_close(embeddings, other.model.albert.embeddings.word_embeddings.weight, atol=0, rtol=0)


def test_published_sizes():
    # Table 1 of the ALBERT paper: 12 and 18 million parameters (its vocabulary has 30 000 tokens), about a million of
    # them in the pooler and the sentence-order head, which are not here.
    for size, millions in (("base", 12), ("large", 18)):
        with torch.device("meta"):
            module = AlbertMLM(size=size)
            module._set_model(AlbertConfig(vocab_size=30000, **SIZES[size]))
        assert sum(p.numel() for p in module.parameters()) / 1e6 == pytest.approx(millions, abs=1.3)


def test_weight_decay_leaves_out_vectors(module):
    decayed, others = parameter_groups(module, 0.01)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    assert all(names[id(p)].endswith("weight") and "LayerNorm" not in names[id(p)] for p in decayed["params"])
    assert all(
        "bias" in names[id(p)] or "LayerNorm" in names[id(p)] or "layer_norm" in names[id(p)] for p in others["params"]
    )
    assert len(decayed["params"]) + len(others["params"]) == len(names)
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.01, 0.0)


def test_metrics_are_means_over_all_counted_tokens():
    metrics = PretrainingMetrics()
    metrics.mlm.update(torch.tensor([1.0, 2.0]), torch.tensor([True, False]))
    metrics.mlm.update(torch.tensor([3.0, 0.0]), torch.tensor([True, False]), 1)
    values = {name: value.item() for name, value in metrics.compute().items()}
    assert values == pytest.approx({"loss": 2.0, "accuracy": 2 / 3, "perplexity": 7.389056099})


def test_predictions_leave_out_padding_and_are_in_order(module, batch, tmp_path):
    batch["index"] = torch.tensor([7, -1, 5, 3])
    module.predict_step(batch, 0)
    module._trainer = SimpleNamespace(world_size=1, is_global_zero=True)
    module.write_predictions(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert [row["index"] for row in rows] == [3, 5, 7]
    assert rows[2]["labels"] == batch["labels"][0].tolist()
    assert len(rows[0]["predictions"]) == NUM_MASKED


def test_unknown_size_is_refused():
    with pytest.raises(MisconfigurationException, match=r"model\.size='huge'.*tiny, base, large"):
        AlbertMLM(size="huge")


def test_weights_that_do_not_fit_the_data_are_refused(module, tmp_path):
    module.model.save_pretrained(tmp_path)
    with pytest.raises(MisconfigurationException, match=r"101 tokens.*102 tokens"):
        built(VOCABULARY + 1, pretrained=str(tmp_path))
    with pytest.raises(MisconfigurationException, match="512 positions"):
        built(length=600, pretrained=str(tmp_path))
