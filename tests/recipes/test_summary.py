# SPDX-License-Identifier: Apache-2.0
"""The last lines of a stage: best and last values, where everything is, the commands that come next."""

import re

import pytest

from lightning_sagemaker.recipes._common.outputs.best import Exported
from lightning_sagemaker.recipes._common.outputs.folders import RunFolders
from lightning_sagemaker.recipes._common.outputs.summary import training_lines

VALIDATED = "step,loss,val_loss,val_f1,val_rows\n1,3.0,,,\n2,2.0,1.5,0.7,9\n3,1.0,1.7,0.6,9\n"
TRAINED = "step,loss,accuracy\n1,3.0,0.5\n2,1.0,0.9\n3,2.0,0.8\n"
FILES = ("output/metrics.json", "output/curves.png", "output/confusion-validate.png", "output/config.yaml")


@pytest.mark.parametrize(
    ("history", "scores"),
    [
        (
            VALIDATED,
            {"val_loss": "best 1.5000 at step 2, last 1.7000", "val_f1": "best 0.7000 at step 2, last 0.6000"},
        ),
        (TRAINED, {"loss": "best 1.0000 at step 2, last 2.0000", "accuracy": "best 0.9000 at step 2, last 0.8000"}),
    ],
)
def test_best_and_last_files_and_commands(tmp_path, history, scores):
    folders = RunFolders(tmp_path / "model", tmp_path / "output", tmp_path / "checkpoints")
    for name in (*FILES, "checkpoints/last.ckpt", "checkpoints/best.ckpt", "output/history/metrics.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(history)
    exported = Exported(2, {"val_f1": 0.7}, "val_f1", folders.checkpoints / "best.ckpt")
    title, *lines = training_lines(
        "bert-qa", ["predict_file"], "question-answering", folders, "finished at step 3", exported, {"test_f1": 0.65}
    )
    rows = dict(re.split(" {2,}", line.strip(), maxsplit=1) for line in lines)
    assert title == "bert-qa fit: finished at step 3"
    assert {name: rows[name] for name in rows if name in (*scores, "loss", "val_loss")} == scores
    for name, place in (("model", "model"), ("metrics", FILES[0]), ("curves", FILES[1]), ("confusion", FILES[2])):
        assert rows[name] == str(tmp_path / place)
    assert rows["exported"] == "step 2, the best by val_f1: 0.7000"
    assert rows["test_f1"] == "0.6500"
    assert rows["checkpoint"].endswith("best.ckpt")
    assert rows["to test"].startswith("lightning-sagemaker run bert-qa test --config ")
    assert rows["to predict"].startswith(f"lightning-sagemaker run bert-qa predict --pretrained {tmp_path / 'model'}")
    assert rows["to serve"].startswith("transformers.pipeline('question-answering'")
