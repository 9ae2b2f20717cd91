# SPDX-License-Identifier: Apache-2.0
"""Secrets are masked however a message writes them, and nothing that a reader needs."""

import json
from urllib.parse import quote, quote_plus

import pytest

from lightning_sagemaker.container.lightning_redaction import redacted

PASSWORD = "win'ter \\sun\tday/50%"


@pytest.mark.parametrize(
    "written",
    [str, repr, json.dumps, quote, quote_plus, lambda value: quote(value, safe=""), lambda value: str([value])],
)
def test_a_variable_s_value_is_masked_in_each_form(written):
    text = redacted(f"cannot connect: {written(PASSWORD)}", {"DB_PASSWORD": PASSWORD})
    assert "sun" not in text
    assert text.startswith("cannot connect: ")


def test_secrets_within_json_are_masked():
    """As in SM_HPS, the hyperparameters, and in nested ones, whose own names tell nothing."""
    values = {"db": {"user": "anna", "password": "open door"}, "hub_tokens": ["quiet river"], "text": "see below"}
    found = redacted("anna: open door, quiet river, see below", {"SM_HPS": json.dumps(values), "SM_HP_X": "{no json"})
    assert found == "anna: ***, ***, see below"


def test_a_tokenizer_is_no_secret():
    text = "Can't load the tokenizer bert-base-uncased"
    assert redacted(text, {"SM_HP_TOKENIZER_NAME": "bert-base-uncased"}) == text
    assert redacted("password: wrong", {"API_TOKEN": "\udcff-undecodable"}) == "password: ***"
