# SPDX-License-Identifier: Apache-2.0
"""The job of recovery_array.py, whose rank kills itself: ``recovery_program.py FOLDER CASE.json`` under ``supervise``."""

import json
import os
import sys
from pathlib import Path

import lightning_sagemaker  # noqa: F401
from tests.chaos.program_model import run

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with (folder / "sessions").open("a") as file:
        file.write(f"{os.getsid(0)}\n")
    case = json.loads(Path(sys.argv[2]).read_text())
    # A rank that begins after the strike is a replacement, which can be struck as well, once.
    start = sum(path.read_text().count('"kind": "strike"') for path in folder.glob("rank-*.jsonl"))
    run(folder, case, start)
