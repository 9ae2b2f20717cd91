# SPDX-License-Identifier: Apache-2.0
"""Every command and every Python block of the pages is run (`make test-docs`), or marked with the reason why not."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, fork_ranks, run_bounded
from tests.docs.blocks import REASONS, RUN, read
from tests.docs.workspace import PRELUDE, SHIM, SHORTER, make_workspace

LISTED = subprocess.run(
    ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, timeout=30
).stdout.split()
FOUND = LISTED or [str(path.relative_to(ROOT)) for path in ROOT.glob("**/*.md")]
PAGES = [page for page in FOUND if page != "CHANGELOG.md"]
BLOCKS = [block for page in PAGES for block in read(ROOT, page)]
LANGUAGES = {"", "bash", "console", "diff", "json", "python", "text", "toml", "yaml"}


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_or_says_why_not(page):
    blocks = read(ROOT, page)
    assert {block.language for block in blocks} <= LANGUAGES
    for block in blocks:
        where = f"{page}:{block.line}"
        cannot = [line for line in block.left.values() if line.split(" ")[0] not in RUN]
        assert cannot == [], f"{where}: mark it with <!-- not run: REASON --> (tests/docs/blocks.py)"
        for lines, reason in block.marks:
            assert reason.startswith(REASONS), f"{where}: {reason!r} is not a reason"
            assert lines <= set(block.commands), f"{where}: the mark names lines that are not commands"
        assert block.is_python or block.commands or not block.marks, f"{where}: nothing would be run"
    marks = re.findall(r"^<!-- not run", (ROOT / page).read_text(), re.MULTILINE)
    assert len(marks) == sum(len(block.marks) for block in blocks), "a mark is not before a block"


def test_marks_and_kinds_are_understood(tmp_path):
    (tmp_path / "page.md").write_text(
        "<!-- not run: needs root -->\n```bash\nsudo x\n```\n"
        "<!-- not run, lines 1 and 3: needs a download -->\n```\npython a\npython b # c\npython d\n```\n"
        "```\n$ python e\npython printed this\n```\n```\nhosts  2\n```\n```python\nx = 1\n```\n"
    )
    root, partly, shown, printed, python = read(tmp_path, "page.md")
    assert (root.is_run, root.marks) == (False, ((frozenset(), "needs root"),))
    assert (partly.line, partly.left) == (7, {2: "python b # c"})
    assert shown.left == {1: "python e"}
    assert (printed.is_run, printed.commands) == (False, {})
    assert python.is_run


@pytest.fixture(scope="module")
def counts():
    found = {"run": 0}
    yield found
    marked = sum(bool(block.marks) and not block.is_run for block in BLOCKS)
    print(
        f"\n{found['run']} of {sum(block.is_run for block in BLOCKS)} blocks were run; {marked} are marked as not run"
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", [page for page in PAGES if any(block.is_run for block in read(ROOT, page))])
def test_blocks_run(page, tmp_path, monkeypatch, counts):
    """In the order of the page, in one folder, which has the files that its commands name."""
    make_workspace(tmp_path)
    monkeypatch.chdir(tmp_path)
    for block in read(ROOT, page):
        if block.is_run:
            where = f"{page}:{block.line}"
            run_python(block, where) if block.is_python else run_commands(block, where)
            counts["run"] += 1
            print(f"{where} ran", flush=True)


def run_python(block, where):
    script = Path(f"block-{block.line}.py").absolute()
    old = "import smdistributed.modelparallel" in block.code  # two stages of two processes, as the block says
    script.write_text((SHIM if old else "") + PRELUDE + block.code)
    # A script that makes a process group without a strategy needs the variables of a launcher.
    processes = 4 if old else int("init_process_group" in block.code)
    fork_ranks(script, processes=processes, PL_TRAINER_MAX_STEPS="2")


def run_commands(block, where):
    for number, line in block.left.items():
        shorter = next((more for pattern, more in SHORTER.items() if re.match(pattern, line)), "")
        if "--max_steps" in shorter:  # a command refuses two values
            line = re.sub(r"--max_steps \S+", "", line)
        command, redirect, target = line.partition(" #")[0].partition(" > ")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        shell = ["bash", "-c", f"{command.strip()} {shorter}{redirect}{target}"]
        result = run_bounded(shell, timeout=600, PATH=path, HF_HUB_OFFLINE="1")
        assert result.returncode == 0, f"{where}, line {number}: {shell[-1]}\n{result.stdout[-4000:]}"
