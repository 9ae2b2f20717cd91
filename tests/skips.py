# SPDX-License-Identifier: Apache-2.0
"""Why a test may be skipped: what a machine can lack that `make test` does not bring. Any other skip fails the run.

A plugin of pytest: it lists at the end what was skipped, and why.
"""

import os
import re
from collections import Counter
from importlib.metadata import version

import pytest

needs_shards = pytest.mark.skipif(
    version("torch").startswith("2.5."), reason="sharded parameters on a CPU need torch 2.6"
)

only_cpu = pytest.mark.skipif(
    os.environ.get("LIGHTNING_SAGEMAKER_TEST_ACCELERATOR") == "cuda", reason="on a GPU it is otherwise"
)
"""Of gloo, or of several ranks of a host: see tests/distributed/place.py."""

ALLOWED = (
    "network namespaces (need root|are Linux's)",
    "namespaces and mounts need root",
    "hosts cannot have names here: .*",  # neither root nor user namespaces
    r"[\w ]+ \(of iproute2 and util-linux\) not found",
    "`ip netns .* failed: .*",  # root in a container that may not
    r"FUSE \(fusepy and libfuse 2\) not found",
    "mounting (needs root|is not permitted)",
    "an NVIDIA GPU not found",
    "on a GPU it is otherwise",
    "AWS's training toolkit was not built: that takes a C compiler and Python's headers",
    "the toolkit's runner of MPI needs /usr/sbin/sshd",
    "(drivers look|looks) for processes in /proc",
    r"a C compiler \(cc\) not found",
    "a pseudo-terminal not found",
    "(playwright|Chromium) not found",  # `make docs-look` brings the one
    "from Python 3.12 on nothing waits at a fork",
    "sagemaker-hyperpod not found",  # HYPERPOD_CLI_PYTHON names a Python that has it
    "the wheels of Open MPI are Linux's",
    "only Linux forks safely after such imports",
    "could not import 'mpi4py': .*",  # the dev extra brings it on Linux only
    r"sharded parameters on a CPU need torch 2\.6",
    "this torch cannot resume FSDP after a failed step",
    "this torch returns batches in order only",
    "(MLflow|W&B|accelerate) was not brought by `make test-slow`",
    "transformers 4 has no such attention for ELECTRA",
)
"""Patterns of whole reasons."""


def is_allowed(reason: str) -> bool:
    """Whether the reason of a skip is one of those in :data:`ALLOWED`."""
    return any(re.fullmatch(pattern, reason, re.DOTALL) for pattern in ALLOWED)


class Skips:
    """What was skipped in one run, by reason."""

    def __init__(self) -> None:
        self._reasons: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._add(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._add(report)

    def _add(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._reasons[report.longrepr[2].removeprefix("Skipped: ")] += 1

    @property
    def _refused(self) -> list[str]:
        return [reason for reason in self._reasons if not is_allowed(reason)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._refused and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._reasons:
            return
        terminalreporter.section("skipped")
        for reason, count in self._reasons.most_common():
            refused = reason in self._refused
            line = f"{count:4} {reason}{': not a reason in tests/skips.py, so this run has failed' if refused else ''}"
            terminalreporter.write_line(line, red=refused, yellow=not refused)


def pytest_configure(config: pytest.Config) -> None:
    """Watch this run."""
    config.pluginmanager.register(Skips())
