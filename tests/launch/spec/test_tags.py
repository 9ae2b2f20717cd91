# SPDX-License-Identifier: Apache-2.0
"""Tags as lists: none is lost on the way to the request."""

import types

import pytest

from lightning_sagemaker.launch import LaunchError, PyTorch


@pytest.mark.parametrize(
    "tag",
    [
        {"Key": "team", "Value": "text"},
        {"key": "team", "value": "text"},
        types.SimpleNamespace(key="team", value="text"),  # as SDK 3's Tag
    ],
)
def test_a_tag_is_the_apis_or_the_sdks(tag):
    assert PyTorch("train.py", tags=[tag]).config.tags == {"team": "text"}


def test_numbers_become_text_as_in_sdk_2():
    assert PyTorch("train.py", tags={"run": 7, "note": ""}).config.tags == {"run": "7", "note": ""}


@pytest.mark.parametrize("tag", ["team=text", {"Key": "team"}, {"team": "text"}, {"Key": "team", "Value": [1]}, None])
def test_what_is_no_tag_is_refused(tag):
    with pytest.raises(LaunchError, match=r"^tags has .*HINT: write \{"):
        PyTorch("train.py", tags=[tag])


def test_a_tag_cannot_have_two_values():
    tags = [{"Key": "team", "Value": "text"}, {"Key": "team", "Value": "speech"}]
    with pytest.raises(LaunchError, match="tags has the key 'team' twice"):
        PyTorch("train.py", tags=tags)
    with pytest.raises(LaunchError, match="tags has 'team': None. HINT"):
        PyTorch("train.py", tags={"team": None})
    with pytest.raises(LaunchError, match="tags='team' was set"):
        PyTorch("train.py", tags="team")
