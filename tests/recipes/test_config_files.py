# SPDX-License-Identifier: Apache-2.0
"""A configuration is read as it was meant, or refused in one sentence."""

import pytest

from lightning_sagemaker.errors import CommandError
from lightning_sagemaker.recipes._common.cli.config_files import check_configs


def check(folder, content):
    path = folder / "config.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    check_configs(["fit", f"--config={path}", "--trainer.max_steps=3"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("trainer:\n  max_steps: 1\n  max_steps: 2\n", "'max_steps' in line 2 and again in line 3"),
        ("trainer: {max_steps: 1}\nmodel: {a: [{b: 1, b: 2}]}\n", "'b' in line 2"),
        ("trainer:\n\tmax_steps: 1\n", "without tabs"),
        (b"\xff\xfe\0", "in UTF-8"),
        ("trainer: 3\n", "'trainer' to '3'"),
        ("data: [1]\n", "'data'"),
        ("- 1\n", "keys and values"),
        ("", "keys and values"),
    ],
)
def test_a_mistake_is_refused(tmp_path, content, said):
    with pytest.raises(CommandError, match="HINT: ") as caught:
        check(tmp_path, content)
    assert said in str(caught.value)
    assert "config.yaml" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "trainer:\nmodel: null\n",
        "a: &x {b: 1}\nc: {<<: *x, b: 2}\n",
        "a: &x\n  b: *x\n",
        "trainer: config.yaml\n",
    ],
)
def test_what_yaml_allows_is_taken(tmp_path, content):
    check(tmp_path, content)


def test_an_absent_file_is_left_to_the_parser():
    check_configs(["fit", "--config=absent.yaml", "--config"])
