# SPDX-License-Identifier: Apache-2.0
"""The files that the calls name, below the current folder."""

from pathlib import Path


def make():
    for folder, names in {
        "src": ("train.py", "run_qa.py", "run_glue.py", "run.sh", "requirements.txt"),
        "libraries": ("helper.py",),
    }.items():
        Path(folder).mkdir(exist_ok=True)
        for name in names:
            Path(folder, name).write_text("")
