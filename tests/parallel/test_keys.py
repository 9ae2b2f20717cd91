# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from lightning_sagemaker.parallel.keys import KEYS

PAGE = Path(__file__).parents[2] / "docs" / "model-parallel.md"
GENERATIONS = {0: "1, 2", 1: "1", 2: "2", -1: "samples"}


def test_the_page_has_every_key_with_its_support():
    rows = {line for line in PAGE.read_text().splitlines() if line.startswith("| `")}
    for key in KEYS:
        assert f"| `{key.name}` | {GENERATIONS[key.version]} | {key.support.value} | {key.note} |" in rows


def test_keys_are_unique_and_say_why():
    assert len({key.name for key in KEYS}) == len(KEYS)
    assert all(key.note for key in KEYS)
