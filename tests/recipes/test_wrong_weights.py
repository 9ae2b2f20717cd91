# SPDX-License-Identifier: Apache-2.0
"""Weights of another model, or none, are refused in one sentence; before, some of them were silently random."""

import os
from types import SimpleNamespace

import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from transformers import AlbertForMaskedLM, AutoModelForSequenceClassification, BertConfig, BertForMaskedLM

from lightning_sagemaker.recipes._common.cli.checkpoints import check_checkpoint, model_options
from lightning_sagemaker.recipes._common.cli.recipe_cli import RecipeCLI
from lightning_sagemaker.recipes._common.modules.fitting import check_optimizer, check_trained, explain_misfit
from lightning_sagemaker.recipes._common.modules.pretrained import load_config, load_model, load_tokenizer, new_weights
from lightning_sagemaker.recipes.sequence_classification.recipe import RECIPE

SIZES = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture
def folder(tmp_path):
    """A masked language model without a tokenizer."""
    BertForMaskedLM(BertConfig(**SIZES)).save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def checkpoint(tmp_path):
    def save(**content):
        torch.save(content, tmp_path / "x.ckpt")
        return str(tmp_path / "x.ckpt")

    return save


def refused(said):
    return pytest.raises(MisconfigurationException, match=rf"{said}.*HINT: ")


def test_a_new_head_may_be_trained_and_not_predict(folder):
    model = load_model(AutoModelForSequenceClassification, folder, load_config(folder, num_labels=3))
    assert "classifier.weight" in new_weights(model)
    with refused("no trained model to predict with: .*model lacks bert.pooler"):
        check_trained(model, folder)
    with refused("no trained model to predict with: all weights are random"):
        check_trained(BertForMaskedLM(BertConfig(**SIZES)), None)
    check_trained(load_model(BertForMaskedLM, folder, load_config(folder)), folder)


def test_a_configuration_that_is_not_the_weights(folder):
    """transformers warns, and begins with random weights in place of the pretrained ones."""
    with refused(r"lacks \d+ weights of BertForSequenceClassification, such as bert\.embeddings"):
        load_model(AutoModelForSequenceClassification, folder, load_config(folder, hidden_size=16))


def test_another_type_of_model(folder):
    with refused("is a model of type bert, but this recipe trains AlbertForMaskedLM"):
        load_model(AlbertForMaskedLM, folder, load_config(folder))


def test_damaged_weights(folder):
    path = os.path.join(folder, "model.safetensors")
    os.truncate(path, os.path.getsize(path) // 2)
    with refused("no model or tokenizer can be loaded from it"):
        load_model(BertForMaskedLM, folder, load_config(folder))


def test_a_folder_without_a_tokenizer(folder):
    """transformers 5 makes up one that knows no words."""
    with refused("has no vocabulary|can be loaded from it"):
        load_tokenizer(folder)


def test_what_is_no_checkpoint_of_the_recipe(checkpoint, tmp_path):
    known = ("model.lora.rank", "model.threshold", "seed_everything")
    check_checkpoint(checkpoint(state_dict={}, hyper_parameters={"threshold": 1, "lora": None, "_x": 1}), "x", known)
    with refused("of another recipe than x: it has model.stride"):
        check_checkpoint(checkpoint(state_dict={}, hyper_parameters={"stride": 1}), "x", known)
    with refused("holds no state_dict"):
        check_checkpoint(checkpoint(a=1), "x", known)
    with refused("cannot be read as a checkpoint"):
        os.truncate(checkpoint(state_dict={}), 300)
        check_checkpoint(str(tmp_path / "x.ckpt"), "x", known)
    with refused("a folder, and no sharded checkpoint"):
        check_checkpoint(str(tmp_path), "x", known)
    with refused("'best' was set, but there is no such file"):
        check_checkpoint("best", "x", known)


def test_options_override_the_settings_in_a_checkpoint(checkpoint, tmp_path, monkeypatch):
    """Lightning replaced them by the checkpoint's: a threshold that was set had no effect."""
    monkeypatch.chdir(tmp_path)
    path = checkpoint(state_dict={}, hyper_parameters={"threshold": 0.5, "temperature": 2.0, "size": "small"})
    words = ["predict", "--config", "tiny.yaml", "--ckpt_path", path, "--model.threshold", "0.9"]
    found = RecipeCLI(RECIPE, words, run=False).model.hparams
    assert (found.threshold, found.temperature, found.size) == (0.9, 2.0, "small")
    assert model_options(["--model.lora.rank=8", "--run_dir=x"], {"model.lora": 1}) == {"model.lora": 1}


def test_a_checkpoint_that_does_not_fit():
    with refused(r"of another model or other data: size mismatch for weight: .*"), explain_misfit():
        torch.nn.Linear(2, 2).load_state_dict(torch.nn.Linear(3, 2).state_dict())
    trainer = SimpleNamespace(state=SimpleNamespace(fn="fit"))
    with refused("model.optimizer='lamb' was set, but the checkpoint is of a run with 'adamw'"):
        check_optimizer(trainer, {"hyper_parameters": {"optimizer": "adamw"}}, "lamb")
    check_optimizer(None, {"hyper_parameters": {"optimizer": "adamw"}}, "lamb")
