# SPDX-License-Identifier: Apache-2.0
"""Rows of Lightning's CSV logger, written by ranks that come, go and are killed: none is lost, and none is torn."""

from __future__ import annotations

import csv
import os
import random
import signal
import time
from pathlib import Path

import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lightning_sagemaker.recovery.log_files import begin_writing, end_writing


def _logger(folder: Path) -> CSVLogger:
    """Of one more process of the same job."""
    logger = CSVLogger(folder, name="", version="", flush_logs_every_n_steps=1)
    begin_writing([logger])
    return logger


def _rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]


def test_a_process_that_leads_again_knows_the_columns_that_came_meanwhile(tmp_path):
    first = _logger(tmp_path)
    first.log_metrics({"loss": 1.0}, 0)
    end_writing([first])
    second = _logger(tmp_path)
    second.log_metrics({"accuracy": 0.5}, 1)
    begin_writing([first])
    first.log_metrics({"loss": 2.0}, 2)
    assert _rows(tmp_path) == [
        {"loss": "1.0", "step": "0"},
        {"accuracy": "0.5", "step": "1"},
        {"loss": "2.0", "step": "2"},
    ]


def test_rows_that_were_not_flushed_are_written_when_another_leads(tmp_path):
    logger = CSVLogger(tmp_path, name="", version="", flush_logs_every_n_steps=100)
    logger.log_metrics({"loss": 1.0}, 0)
    end_writing([logger])
    assert _rows(tmp_path) == [{"loss": "1.0", "step": "0"}]


def test_half_a_line_is_dropped(tmp_path):
    _logger(tmp_path).log_metrics({"loss": 1.0}, 0)
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("0.2")
    _logger(tmp_path).log_metrics({"loss": 3.0}, 2)
    assert _rows(tmp_path) == [{"loss": "1.0", "step": "0"}, {"loss": "3.0", "step": "2"}]


def test_loggers_without_such_a_file_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(TensorBoardLogger, "experiment", property(lambda self: pytest.fail("it was made")))
    begin_writing([TensorBoardLogger(tmp_path, name="", version=""), CSVLogger("memory://nowhere")])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")
def test_kills_at_any_moment_leave_all_rows_that_were_there(tmp_path):
    """Each process adds a column with each row, for which the file is written again; the last row may be lost."""
    rng, step = random.Random(0), 0
    for _ in range(20):
        before = len(_rows(tmp_path)) if step else 0
        child = os.fork()
        if child == 0:
            logger = _logger(tmp_path)
            for number in range(step, step + 10**6):
                logger.log_metrics({f"name {number}": 1.0, "loss": 2.0}, number)
        time.sleep(rng.uniform(0.01, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if not (tmp_path / "metrics.csv").exists() and not step:
            continue
        begin_writing([CSVLogger(tmp_path, name="", version="")])
        rows = _rows(tmp_path)
        assert len(rows) >= before
        assert [row["step"] for row in rows] == [str(number) for number in range(len(rows))]
        assert all(row["loss"] == "2.0" and row[f"name {row['step']}"] == "1.0" for row in rows)
        step = len(rows)
    assert step > 20
