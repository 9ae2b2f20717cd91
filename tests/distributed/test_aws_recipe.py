# SPDX-License-Identifier: Apache-2.0
"""AWS's hand-patched Lightning recipe keeps working beside this package, under either Lightning package."""

from pathlib import Path

import pytest

from tests.conftest import read_ranks, torchrun

SCRIPT = Path(__file__).with_name("aws_recipe.py")


@pytest.mark.parametrize("package", ["lightning", pytest.param("pytorch_lightning", marks=pytest.mark.slow)])
def test_patched_and_plain_recipe_train_alike(tmp_path, package):
    for mode in ("patched", "plain"):
        torchrun(SCRIPT, package, mode, tmp_path / mode, processes=2)
    patched, plain = read_ranks(tmp_path / "patched"), read_ranks(tmp_path / "plain")
    assert [rank["weights"] for rank in plain] == [rank["weights"] for rank in patched]
    assert all(rank["world_size"] == 2 for rank in patched + plain)
    assert {rank["environment"] for rank in patched} == {"LightningEnvironment"}
    assert {rank["environment"] for rank in plain} == {"SageMakerEnvironment"}
    assert {rank["backend"] for rank in patched} == {"smddp"}
    assert {rank["backend"] for rank in plain} == {"smddp_composite"}
