# SPDX-License-Identifier: Apache-2.0
"""The files that the calls name, below the current folder, and a repository of them behind an address."""

import os
import subprocess
from pathlib import Path

REPOSITORY = "https://git.example.com/team/repository.git"
"""Git itself reads it from a folder, as :func:`make` configures."""


def make():
    for folder, names in {
        "src": ("train.py", "run_qa.py", "run_glue.py", "run.sh", "requirements.txt"),
        "libraries": ("helper.py",),
    }.items():
        Path(folder).mkdir(exist_ok=True)
        for name in names:
            Path(folder, name).write_text("")
    place = Path("repository").resolve()
    os.environ.update(GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0=f"url.{place}.insteadOf", GIT_CONFIG_VALUE_0=REPOSITORY)
    _git("init", "--quiet", "--initial-branch", "main", str(place))
    (place / "src").mkdir()
    (place / "src" / "train.py").write_text("")
    _commit(place)
    (place / "src" / "run_qa.py").write_text("")
    _commit(place)
    _git("-C", str(place), "branch", "second")


def first_commit():
    return _git("-C", "repository", "rev-list", "--max-parents=0", "HEAD").strip()


def _commit(place):
    _git("-C", str(place), "add", "--all")
    _git("-C", str(place), "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "-m", "files")


def _git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout
