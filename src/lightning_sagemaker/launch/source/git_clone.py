# SPDX-License-Identifier: Apache-2.0
"""Clone the git repository of a job's source."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from lightning_sagemaker.errors import LaunchError

_LOGIN = ("2FA_enabled", "username", "password", "token")
"""Keys of SDK 2's ``git_config`` that are accepted only if they are empty or False."""

REPOSITORY = "repository"
"""Name of the folder of a clone."""

_SECONDS = 600
"""Time limit of a clone, enough for a large repository over a slow network; git itself has none."""


def clone(git: object, scratch: Path) -> Path:
    """Clone a repository into a new folder of ``scratch``; return the folder.

    Args:
        git: ``git_config`` of a job.
        scratch: Parent of the new folder.

    Raises:
        LaunchError: If a key is unknown or has a value of the wrong type, or git cannot clone it.

    """
    if not isinstance(git, dict) or not git.get("repo"):
        raise LaunchError(f'git_config={git!r} was set. HINT: write {{"repo": "https://...", "branch": "main"}}.')
    for name in _LOGIN:
        if git.get(name):
            raise LaunchError(
                f"git_config has {name!r}, which would appear in the clone command. HINT: leave it out, and authenticate"
                " with git's credential helper or an SSH key."
            )
    unknown = set(git) - {"repo", "branch", "commit", *_LOGIN}
    if unknown:
        raise LaunchError(
            f"git_config has the unknown key {min(unknown)!r}. HINT: the keys are repo, branch and commit."
        )
    for name in ("repo", "branch", "commit"):
        if git.get(name) and not isinstance(git[name], str):
            raise LaunchError(f"git_config has {name}={git[name]!r}. HINT: it must be a string.")
    target = scratch / REPOSITORY
    branch = ["--branch", git["branch"]] if git.get("branch") else []
    shallow = [] if git.get("commit") else ["--depth", "1"]
    commands = [["git", "clone", "--quiet", *shallow, *branch, "--", git["repo"], str(target)]]
    if git.get("commit"):
        commands.append(["git", "-C", str(target), "checkout", "--quiet", git["commit"]])
    for command in commands:
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SECONDS)
        except OSError as error:
            raise LaunchError(f"git cannot be started: {error.strerror}. HINT: install it.") from error
        except subprocess.TimeoutExpired as error:
            raise LaunchError(
                f"{_shown(git['repo'])!r} was not cloned in {_SECONDS} s. HINT: clone it yourself and give source_dir."
            ) from error
        if done.returncode:
            raise LaunchError(
                f"{_shown(git['repo'])!r} cannot be cloned: {_shown(done.stderr.strip()[-300:])}. HINT: check repo, branch"
                " and commit."
            )
    return target


def _shown(text: str) -> str:
    """A text without the tokens and passwords in its URLs."""
    return re.sub(r"(?<=//)[^/@\s]+@", "", text)
