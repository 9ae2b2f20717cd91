# SPDX-License-Identifier: Apache-2.0
"""The history of a run goes on where it was interrupted."""

import csv

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sagemaker.recipes._common.outputs.history import HistoryLogger
from lightning_sagemaker.recipes._common.outputs.pictures import curve_panels


def log(folder, begin, steps, validates_at=5):
    """A row for each step done, and one more for a validation after one of them."""
    logger = HistoryLogger(folder)
    logger.keep_until(begin)
    for step in steps:
        if step != validates_at or step > begin:
            logger.log_metrics({"loss": 1.0 / step}, step)
        if step == validates_at:
            logger.log_metrics({"val_loss": 2.0}, step)
    logger.finalize("success")


def rows(folder):
    with (folder / "history" / "metrics.csv").open(newline="") as file:
        return [(int(row["step"]), "val" if row.get("val_loss") else "train") for row in csv.DictReader(file)]


WHOLE = sorted([*((step, "train") for step in range(1, 9)), (5, "val")], key=lambda row: row[0])


@pytest.mark.parametrize("stop", [3, 4, 6, 8])
def test_steps_that_were_done_twice_are_there_once(tmp_path, stop):
    log(tmp_path, 0, range(1, 9))
    log(tmp_path, stop, range(stop + 1, 9))
    assert rows(tmp_path) == WHOLE


def test_a_validation_after_the_last_step_is_there_once(tmp_path):
    """Whether it was done before the stop or is done again."""
    log(tmp_path, 0, range(1, 7))
    log(tmp_path, 5, range(5, 9))
    assert rows(tmp_path) == WHOLE
    log(tmp_path, 5, range(6, 9))
    assert rows(tmp_path) == WHOLE


def test_a_fresh_start_has_a_history_of_its_own(tmp_path):
    log(tmp_path, 0, range(1, 7))
    log(tmp_path, 0, range(1, 3))
    assert rows(tmp_path) == [(1, "train"), (2, "train")]


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=80))
def test_any_file_left_by_a_killed_job_is_no_error(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("history")
    log(folder, 0, range(1, 4))
    with (folder / "history" / "metrics.csv").open("ab") as file:
        file.write(content)
    log(folder, 2, range(3, 5))
    found = [step for step, _ in rows(folder)]
    assert found[:2] == [1, 2]
    assert found[-2:] == [3, 4]


def test_no_panel_of_the_curves_has_two_scales():
    series = {"loss": [(1, 5.0)], "accuracy": [(1, 0.5)], "val_loss": [(2, 4.0)], "learning_rate": [(1, 1e-3)]}
    percent = {"val_f1": [(2, 0.0), (4, 80.5)], "val_exact": [(4, 70.0)], "val_total": [(4, 600.0)]}
    assert curve_panels(series | percent) == [
        ("loss", ["loss", "val_loss"]),
        ("score", ["accuracy"]),
        ("score in percent", ["val_f1", "val_exact"]),
        ("learning rate", ["learning_rate"]),
    ]
