# SPDX-License-Identifier: Apache-2.0
"""Numbers that no run can use are refused before anything is prepared, by the name under which they are documented."""

import errno
import logging

import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lightning_sagemaker.errors import CommandError
from lightning_sagemaker.recipes._common.cli.console import Console
from lightning_sagemaker.recipes._common.cli.entry import run_recipe
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


def test_an_environment_that_contradicts_itself_is_one_sentence(monkeypatch, capsys):
    """The error was raised again while it was shown."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="2"):
        run_recipe("lightning_sagemaker.recipes.sequence_classification", ["fit"])
    assert capsys.readouterr().err == "error: RANK=1 is out of range for WORLD_SIZE=1. HINT: ranks go from 0 to 0.\n"


def test_a_log_that_cannot_be_written_is_said_once(capsys):
    class Full:
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    log = logging.Logger("x", "INFO")
    log.addHandler(Console(Full()))
    log.info("one")
    log.info("two")
    assert capsys.readouterr().err.startswith("warning: the output cannot be written: No space left on device. HINT: ")
    assert log.handlers[0]._is_lost
