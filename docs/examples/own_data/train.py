# SPDX-License-Identifier: Apache-2.0
"""A recipe on data of your own: support tickets, sorted by the team that answers them.

Here the table is made up; bring your own as CSV, TSV, JSON, JSON lines or Parquet.

On a laptop::

    python docs/examples/own_data/train.py --max_steps 60

Rehearsed on two simulated hosts::

    lightning-sagemaker local --hosts 2 --distribution smddp -- python docs/examples/own_data/train.py --max_steps 60

On SageMaker, with the table as a channel, no script is needed::

    lightning-sagemaker launch sequence-classification --channel train=s3://bucket/tickets/ --instance-type ml.g5.xlarge --set hyperparameters.label_column=team
"""  # noqa: E501

from __future__ import annotations

import csv
import os
import random
import sys
import tempfile
from pathlib import Path

TEAMS = {
    "billing": ("my invoice is wrong", "I was charged twice", "please refund the last payment"),
    "access": ("I cannot log in", "my password does not work", "the second factor is lost"),
    "shipping": ("my parcel has not arrived", "the box was damaged", "please change my address"),
}
OPENINGS = ("Hello,", "Hi there,", "Since Monday", "Again:", "Dear team,")


def write_tickets(path: Path, count: int = 600) -> None:
    """Write a table with the columns ``message`` and ``team``, atomically.

    Args:
        path: Of the CSV file; every process that asks gets the same content.
        count: Of tickets.

    """
    draw = random.Random(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, newline="") as file:
        table = csv.writer(file)
        table.writerow(["message", "team"])
        for _ in range(count):
            team = draw.choice(list(TEAMS))
            table.writerow([f"{draw.choice(OPENINGS)} {draw.choice(TEAMS[team])}", team])
    os.replace(file.name, path)


def main(arguments: list[str]) -> None:
    """Write the table, then train on it; ``arguments`` are the recipe's."""
    from lightning_sagemaker.recipes.sequence_classification.train import main as train

    table = Path("runs") / "own-data" / "tickets.csv"
    write_tickets(table)
    data = ["--train_file", str(table), "--text_columns", "message", "--label_column", "team"]
    train(["fit", "--config", "tiny.yaml", *data, "--vocab_size", "200", *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
