# SPDX-License-Identifier: Apache-2.0
import io
import json
import math
import re

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from lightning_sagemaker.callbacks import MetricLogger, Throughput, ThroughputRecord, metric_definitions


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val loss", 1.5)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(tmp_path, *callbacks, stream=None, **options):
    trainer = Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        logger=MetricLogger(stream) if stream is not None else False,
        callbacks=list(callbacks),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_steps": 6, "log_every_n_steps": 2, **options},
    )
    loader = torch.utils.data.DataLoader(torch.randn(24, 4), batch_size=2)
    trainer.fit(Model(), loader, loader)
    return trainer


def lines(stream):
    return [dict(pair.split("=") for pair in line.split()) for line in stream.getvalue().splitlines()]


def test_one_line_for_each_logged_step(tmp_path):
    stream = io.StringIO()
    fit(tmp_path, stream=stream)
    logged = [line for line in lines(stream) if "loss" in line]
    assert len(logged) == 3
    assert all(math.isfinite(float(line["loss"])) for line in logged)


def test_validation_metrics_have_plain_names(tmp_path):
    stream = io.StringIO()
    fit(tmp_path, stream=stream, val_check_interval=3)
    assert [line["val_loss"] for line in lines(stream) if "val_loss" in line] == ["1.5", "1.5"]


def test_values_and_order():
    stream = io.StringIO()
    MetricLogger(stream).log_metrics({"loss": 0.123456789, "epoch": 1.0, "a b": 2, "rate": 1e-07}, step=10)
    assert stream.getvalue() == "step=10 epoch=1 loss=0.123457 a_b=2 rate=1e-07\n"


@pytest.mark.parametrize("value", [0.5, -3.25, 1e-07, 2.5e08, 12, float("nan"), float("inf"), float("-inf")])
def test_definitions_read_the_lines(value):
    stream = io.StringIO()
    MetricLogger(stream).log_metrics({"loss": value, "val_loss": 99.0}, step=1)
    (definition,) = metric_definitions(["loss"])
    assert definition["Name"] == "loss"
    (found,) = re.findall(definition["Regex"], stream.getvalue())
    assert float(found) == value or math.isnan(value)


def test_other_ranks_print_nothing(monkeypatch):
    from lightning.pytorch.utilities.rank_zero import rank_zero_only

    monkeypatch.setattr(rank_zero_only, "rank", 1)
    stream = io.StringIO()
    MetricLogger(stream).log_metrics({"loss": 1.0}, step=1)
    assert stream.getvalue() == ""


class Clock:
    """Each step takes one second, each validation a hundred."""

    now = 0.0

    def perf_counter(self):
        return self.now


class Advance(Throughput):
    """Moves the clock as the model would."""

    def __init__(self, clock, **options):
        super().__init__(tokens_key=None, **options)
        self.clock = clock

    def on_train_batch_start(self, *_):
        self.clock.now += 1

    def on_validation_batch_start(self, *_):
        self.clock.now += 100


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("lightning_sagemaker.callbacks.throughput.time", clock)
    return clock


def test_rates_leave_out_the_first_step_and_validation(tmp_path, clock):
    stream = io.StringIO()
    record = tmp_path / "output" / "throughput.json"
    fit(tmp_path, Advance(clock, record=record), stream=stream, val_check_interval=3)
    logged = [line for line in lines(stream) if "samples_per_second" in line]
    # Two samples of four numbers in a second.
    assert [(line["samples_per_second"], line["tokens_per_second"]) for line in logged] == [("2", "8")] * 3
    saved = ThroughputRecord.load(record)
    assert (saved.samples_per_second, saved.num_processes, saved.steps) == (2, 1, 5)
    assert saved.workload["parameters"] == 5
    assert [path.name for path in record.parent.iterdir()] == ["throughput.json"]


def test_accumulated_micro_batches_count(tmp_path, clock):
    throughput = Advance(clock)
    fit(tmp_path, throughput, accumulate_grad_batches=3, max_steps=4)
    result = throughput.result(1)
    assert (result.samples_per_second, result.steps) == (2, 3)


def record_of(trainer_free_workload, path, **changes):
    values = {"samples_per_second": 4.0, "tokens_per_second": 16.0, "num_processes": 1, "steps": 5}
    ThroughputRecord(**{**values, "workload": trainer_free_workload, **changes}).save(path)


@pytest.fixture
def two_processes(monkeypatch):
    monkeypatch.setattr(Trainer, "world_size", property(lambda self: 2))


def workload_here():
    threads = torch.get_num_threads()
    return {"parameters": 5, "sequence_length": 4, "precision": "32-true", "device": f"cpu x {threads}"}


def test_efficiency_against_the_recorded_run(tmp_path, clock, two_processes):
    record_of(workload_here(), tmp_path / "one.json")
    throughput = Advance(clock, baseline=tmp_path / "one.json", record=tmp_path / "throughput.json")
    stream = io.StringIO()
    fit(tmp_path, throughput, stream=stream)
    # Two processes of two samples in a second each, where one alone made four.
    assert {line["scaling_efficiency"] for line in lines(stream) if "scaling_efficiency" in line} == {"0.5"}
    assert throughput.efficiency(2) == 0.5
    assert not (tmp_path / "throughput.json").exists()


@pytest.mark.parametrize("difference", [{"workload": {"parameters": 6}}, {"num_processes": 2}])
def test_a_record_of_something_else_is_not_compared(tmp_path, clock, two_processes, difference, caplog):
    path = tmp_path / "one.json"
    record_of({**workload_here(), **difference.pop("workload", {})}, path, **difference)
    throughput = Advance(clock, record=path)
    with caplog.at_level("INFO", "lightning_sagemaker"):
        fit(tmp_path, throughput)
    assert throughput.efficiency(2) is None
    assert "no scaling efficiency" in caplog.text


def test_without_a_record_no_efficiency_is_invented(tmp_path, clock, two_processes):
    throughput = Advance(clock, record=tmp_path / "throughput.json")
    fit(tmp_path, throughput)
    assert throughput.efficiency(2) is None


@pytest.mark.parametrize("content", ["", "[]", json.dumps({"a": 1})])
def test_a_file_that_is_no_record_is_refused(tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ValueError, match=r"x\.json.*HINT"):
        ThroughputRecord.load(tmp_path / "x.json")
