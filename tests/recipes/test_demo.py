# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from lightning_sagemaker.commands import demo as demo_command

METRICS = {
    "nodes": 2,
    "processes": 2,
    "strategy": "SMDDPStrategy",
    "strategy_reason": "the job asked for it",
    "steps": 400,
    "train_loss": 5.5,
    "val_loss": 5.6,
    "val_accuracy": 0.125,
    "samples_per_second": 500.4,
    "tokens_per_second": 32000,
}


def write(host, **changes):
    output = host / "output" / "data"
    (output / "history").mkdir(parents=True)
    (output / "metrics.json").write_text(json.dumps({**METRICS, **changes}))
    (output / "history" / "metrics.csv").write_text("step,val_loss,loss\n0,9.9,\n10,,7.6\n20,,7.1\n")


@pytest.mark.parametrize(
    ("loss", "code", "said"),
    [(5.5, 0, "5.5000 (below"), (demo_command.LOSS_LIMIT, 1, "NOT below"), (float("nan"), 1, "NOT below")],
)
def test_exit_code_says_whether_it_learned(tmp_path, capsys, loss, code, said):
    write(tmp_path, train_loss=loss)
    assert demo_command._report(tmp_path, 61.4) == code
    table = capsys.readouterr().out
    assert said in table
    assert "SMDDPStrategy (the job asked for it)" in table
    assert "7.6000 (to step 10)" in table
    assert "no single-process run" in table
    assert str(tmp_path / "model") in table


def test_efficiency_is_shown_if_it_was_measured(tmp_path, capsys):
    write(tmp_path, scaling_efficiency=0.753)
    demo_command._report(tmp_path, 1)
    assert "75%" in capsys.readouterr().out
