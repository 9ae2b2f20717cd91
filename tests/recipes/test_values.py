# SPDX-License-Identifier: Apache-2.0
"""Numbers that no run can use are refused before anything is prepared, by the name under which they are documented."""

import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_sagemaker.errors import CommandError
from lightning_sagemaker.recipes._common.cli.values import check_values
from lightning_sagemaker.recipes._common.modules.optimization import Optimization


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("seed_everything", -1, "at least 0"),
        ("seed_everything", 2**32, "at most 4294967295"),
        ("total_examples", -5, "at least 1"),  # trained one step
        ("checkpoint_minutes", -1.0, "at least 0"),  # saved after each step
        ("data.num_workers", -1, "at least 0"),
        ("trainer.accumulate_grad_batches", 0, "at least 1"),
        ("trainer.val_check_interval", 0, "more than 0"),
        ("model.dropout", 1.5, "at most 1"),
    ],
)
def test_out_of_range(name, value, said):
    with pytest.raises(CommandError, match=rf"^{name}={value} was set\. HINT: it must be {said}\.$"):
        check_values({name: value})


def test_within_range():
    check_values({"seed_everything": True, "data.num_workers": "auto", "total_examples": None, "model.dropout": 0.1})


def test_an_unknown_schedule():
    with pytest.raises(
        MisconfigurationException, match=r"model\.schedule='lineer' was set. HINT: did you mean 'linear'\?"
    ):
        Optimization(schedule="lineer")
