# SPDX-License-Identifier: Apache-2.0
"""The history of a run goes on where it was interrupted."""

import csv

from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_sagemaker.recipes._common.history import HistoryLogger


def log(folder, begin, steps):
    logger = HistoryLogger(folder)
    logger.keep_before(begin)
    for step in steps:
        logger.log_metrics({"loss": 1.0 / (step + 1), **({"val_loss": 2.0} if step == 4 else {})}, step)
    logger.save()


def rows(folder):
    with (folder / "history" / "metrics.csv").open(newline="") as file:
        return [(int(row["step"]), row.get("val_loss", "")) for row in csv.DictReader(file)]


def test_steps_that_were_done_twice_are_there_once(tmp_path):
    log(tmp_path, 0, range(6))
    log(tmp_path, 4, range(4, 8))
    assert rows(tmp_path) == [(step, "2.0" if step == 4 else "") for step in range(8)]


def test_a_fresh_start_has_a_history_of_its_own(tmp_path):
    log(tmp_path, 0, range(6))
    log(tmp_path, 0, range(2))
    assert [step for step, _ in rows(tmp_path)] == [0, 1]


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=80))
def test_any_file_left_by_a_killed_job_is_no_error(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("history")
    log(folder, 0, range(3))
    with (folder / "history" / "metrics.csv").open("ab") as file:
        file.write(content)
    log(folder, 2, range(2, 4))
    found = [step for step, _ in rows(folder)]
    assert found[:2] == [0, 1]
    assert found[-2:] == [2, 3]
