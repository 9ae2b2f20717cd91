# SPDX-License-Identifier: Apache-2.0
"""Each machine of conditions.py, in each way to start a training: the loss is right, or it ends with one sentence."""

import functools
from pathlib import Path

import pytest

from tests.machines.conditions import CONDITIONS, SYSTEMS
from tests.machines.runs import RIGHT, SENTENCE, STARTS, Condition, can_make_machines, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not can_make_machines(), reason="mounting needs root"),
]

CASES = [
    pytest.param(condition, start, id=f"{condition.name}: {start}")
    for condition in (*CONDITIONS[1:], *SYSTEMS)
    for start in STARTS
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The runs on the machine as it is, each when it is first asked for."""
    return functools.cache(lambda start: run(CONDITIONS[0], start, _open_to_all(tmp_path_factory.mktemp("plain"))))


def _open_to_all(folder: Path) -> Path:
    """An ordinary user of the run must reach it; pytest's folders are their owner's."""
    for parent in (folder, *folder.parents[:3]):
        if parent.owner() == folder.owner() and parent != Path("/tmp"):
            parent.chmod(0o755)
    return folder


def _need_fuse() -> None:
    try:
        import fuse  # noqa: F401
    except (ImportError, OSError):
        pytest.skip("FUSE (fusepy and libfuse 2) not found")


@pytest.mark.parametrize(("condition", "start"), CASES)
def test_it_trains_or_says_why_not(condition: Condition, start: str, plain, tmp_path):
    if "ignores case" in condition.name:
        _need_fuse()
    assert plain(start).outcome(None) == RIGHT, plain(start).output[-4000:]
    ended = run(condition, start, _open_to_all(tmp_path))
    assert ended.outcome(plain(start)) == condition.outcome(start), ended.output[-4000:]
    if condition.name == "a Mac" and condition.outcome(start) == RIGHT:
        alone = start == "one process"
        expected = {"accelerator": "MPSAccelerator" if alone else "CPUAccelerator", "grouped": not alone}
        assert {name: ended.result[name] for name in expected} == expected
        assert ended.output.count("Training on the CPU instead of the MPS device") == int(not alone)
    if condition.outcome(start) == SENTENCE:
        assert "HINT: " in ended.output
