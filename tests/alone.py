# SPDX-License-Identifier: Apache-2.0
"""Tests that measure time run alone: where pytest-xdist runs several tests at once, none runs beside one marked ``alone``.

A plugin of pytest. Each test, with the fixtures that it makes, holds a lock that is shared; one marked ``alone`` holds it
for itself. A turnstile before it keeps further tests from starting while one waits to be alone. Files with such tests come
last: none of the long tests of other files is then waited for.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_VARIABLE = "LIGHTNING_SAGEMAKER_TEST_LOCKS"
_FOLDER = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


class Alone:
    """The locks, in a process that runs tests beside others."""

    def __init__(self, folder: Path) -> None:
        self._turnstile, self._running = folder / "turnstile", folder / "running"

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # before the time limit of a test begins
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        is_alone = item.get_closest_marker("alone") is not None
        with self._running.open("w") as running:
            with _locked(self._turnstile):
                fcntl.flock(running, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
            try:
                return (yield)
            finally:
                fcntl.flock(running, fcntl.LOCK_UN)  # closing is not enough where the test has forked


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order files; a file's tests stay together, as they were."""
    alone = {item.path for item in items if item.get_closest_marker("alone")}
    items.sort(key=lambda item: item.path in alone)


def pytest_configure(config: pytest.Config) -> None:
    """The process that starts the others makes the folder; they find it in their environment."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Alone(Path(os.environ.pop(_VARIABLE))))
    elif config.getoption("numprocesses", None):
        config.stash[_FOLDER] = tempfile.TemporaryDirectory(prefix="tests-")
        os.environ[_VARIABLE] = config.stash[_FOLDER].name


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folder."""
    if _FOLDER in config.stash:
        config.stash[_FOLDER].cleanup()
        del os.environ[_VARIABLE]
