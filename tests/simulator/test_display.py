# SPDX-License-Identifier: Apache-2.0
"""What of a simulated job is shown: warnings once, one failure alone, a table on a terminal; the logs have everything."""

import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

import pytest

from lightning_sagemaker import cli
from lightning_sagemaker.launch import run_local_cluster
from lightning_sagemaker.metric_lines import format_line, parse_line
from lightning_sagemaker.simulator import display
from lightning_sagemaker.simulator.display import Digest, Lines, Source
from lightning_sagemaker.simulator.streams import Stream, sentence_of
from tests.conftest import is_contract_variable

PROGRAM = """
import os, sys, time, warnings
rank = int(os.environ["SM_CURRENT_HOST"][-1]) - 1
warnings.warn("it is old")
print(f"hello from {rank}", flush=True)
if sys.argv[1] == "raise":
    raise RuntimeError(f"boom {rank}")
if sys.argv[1] == "hint":
    raise ValueError("x=1 was set. HINT: set 2.")
if sys.argv[1] == "import":
    import nothing_like_it
"""

TRAINS = """
import os, time
if os.environ["SM_CURRENT_HOST"] == "algo-1":
    for step in range(4):
        print(f"step={step} epoch=0 loss={1 / (step + 1)} samples_per_second=12.5", flush=True)
        time.sleep(0.3)
print("it is done [bold]", flush=True)
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    return [sys.executable, str(tmp_path / "program.py")]


def run(program, tmp_path, how, **options):
    output = io.StringIO()
    options |= {"hosts": 3, "distribution": "none", "preload": False}
    result = run_local_cluster([*program, how], root=tmp_path / "root", output=output, timeout=60, **options)
    logs = {path.name: path.read_text() for path in (tmp_path / "root" / "logs").iterdir()}
    return result, output.getvalue().splitlines(), logs


def test_one_failure_is_shown_once_and_the_logs_have_all(tmp_path, program):
    (tmp_path / "root" / "logs").mkdir(parents=True)
    for name in ("mine.log", "algo-4.log"):  # of the user, whose folder it may be, and of an earlier job
        (tmp_path / "root" / "logs" / name).touch()
    result, lines, logs = run(program, tmp_path, "raise")
    rank, host = result.failure.rank, result.failure.host
    assert sum("Traceback" in line for line in lines) == sum("Error: boom" in line for line in lines) == 1
    said = next(number for number, line in enumerate(lines) if line.endswith("were stopped. Its last output:"))
    assert f"rank {rank} failed with exit code 1 on {host};" in lines[said]
    assert lines[said + 1].startswith(f"{host} [{rank}] | Traceback")
    assert lines[-2] == f"{host} [{rank}] | RuntimeError: boom {rank}"
    assert lines[-1] == f"lightning-sagemaker: the full output of each rank is in {result.root / 'logs'}"
    assert f"RuntimeError: boom {rank}" in logs[f"{host}-rank-{rank}.log"]
    assert "UserWarning: it is old" in logs[f"{host}-rank-{rank}.log"]
    hosts = range(3)
    assert set(logs) == {
        *(f"algo-{1 + host}-rank-{host}.log" for host in hosts),
        *(f"algo-{1 + host}.log" for host in hosts),
        "mine.log",
    }


@pytest.mark.parametrize(
    ("how", "message"),
    [("hint", "ValueError: x=1 was set. HINT: set 2."), ("import", "No module named 'nothing_like_it'\n.*HINT: pip")],
)
def test_an_error_that_says_what_to_do_is_one_sentence(tmp_path, program, how, message):
    _, lines, _ = run(program, tmp_path, how)
    assert re.search(message, "\n".join(lines))
    assert not any("Traceback" in line for line in lines)


def test_debug_shows_everything(tmp_path, program):
    _, lines, _ = run(program, tmp_path, "hint", debug=True)
    assert any("Traceback" in line for line in lines)


STOPS = """
import os, signal, sys, time
ready = "ready"

def save(*_):
    print("it is saved", flush=True)
    sys.exit(143)

if os.environ["SM_CURRENT_HOST"] == "algo-1":
    signal.signal(signal.SIGTERM, save)
    open(ready, "w").close()
    time.sleep(30)
while not os.path.exists(ready):
    time.sleep(0.02)
sys.exit(143)
"""


def test_what_ranks_say_that_were_asked_to_stop_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(STOPS)
    result, lines, _ = run([sys.executable, str(tmp_path / "program.py")], tmp_path, "")
    assert result.returncode == 143
    assert "algo-1 [0] | it is saved" in lines


def test_a_refused_call_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words in (
        ["--channel", "a=/nonexistent", "--", "true"],
        ["--", "absent.py"],
        ["--contract", "x", "--", "true"],
    ):
        assert cli.main(["local", *words]) == 2
        assert "HINT" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def digest(*, ranks):
    output = io.StringIO()
    return Digest(Lines(output), ranks), output


def test_a_warning_of_all_ranks_is_shown_once():
    shown, output = digest(ranks=8)
    for rank in range(8):
        shown.show(Source("algo-1", rank), f"[rank{rank}]:[W1123 01:40:3{rank}.123 Group.cpp:1] Warning: slow")
        shown.show(Source("algo-1", rank), "x.py:3: FutureWarning: old")
        shown.show(Source("algo-1", rank), "  warnings.warn('old')")
        shown.show(Source("algo-1", rank), "after")
    shown.tick()
    lines = output.getvalue().splitlines()
    assert [line for line in lines if not line.endswith("| after")] == [
        "algo-1 [0] | [rank0]:[W1123 01:40:30.123 Group.cpp:1] Warning: slow (and 7 more ranks)",
        "algo-1 [0] | x.py:3: FutureWarning: old (and 7 more ranks)",
        "algo-1 [0] |   warnings.warn('old')",
    ]
    assert len(lines) == 3 + 8


@pytest.mark.parametrize("piece", [b"x" * 65536, b"\r" + b"0.1it/s " * 100], ids=["word", "progress"])
def test_a_long_line_takes_no_longer(piece):
    """Such as an encoded image, or a progress bar of an hour. Before, minutes that no signal could interrupt."""
    shown, output = digest(ranks=2)
    stream = Stream(Source("algo-1", 0), shown, None)
    began = time.monotonic()
    for _ in range(10_000_000 // len(piece)):
        stream.feed(piece)
    stream.feed(b"\r\nafter\n")
    shown.tick()
    assert time.monotonic() - began < 10
    first, second = output.getvalue().splitlines()
    assert first.startswith("algo-1 [0] | xxx" if piece[:1] == b"x" else "algo-1 [0] | 0.1it/s 0.1it/s")
    assert second == "algo-1 [0] | after"


def test_a_warning_said_twice_is_shown_twice_and_a_late_one_is_counted(monkeypatch):
    monkeypatch.setattr(display, "WINDOW", 0.0)
    shown, output = digest(ranks=2)
    for _ in range(2):
        shown.show(Source("algo-1", 0), "UserWarning: a")
    shown.show(Source("algo-1", 1), "UserWarning: a")
    shown.show(Source("algo-1", 1), "UserWarning: b")
    shown.close()
    assert output.getvalue().splitlines() == [
        "algo-1 [0] | UserWarning: a",
        "algo-1 [0] | UserWarning: a",
        "algo-1 [1] | UserWarning: b",
        "lightning-sagemaker: 1 more warning from another rank repeats one above",
    ]


def test_an_error_is_shown_if_the_rank_goes_on(monkeypatch):
    monkeypatch.setattr(display, "PATIENCE", 0.05)
    shown, output = digest(ranks=2)
    shown.show(Source("algo-1", 0), "Traceback (most recent call last):")
    shown.show(Source("algo-1", 0), "ValueError: caught")
    assert output.getvalue() == ""
    time.sleep(0.06)
    shown.tick()
    assert output.getvalue().splitlines()[-1] == "algo-1 [0] | ValueError: caught"


def test_the_sentence_of_an_error():
    traced = ("[rank1]: Traceback (most recent call last):", '[rank1]:   File "x.py", line 1', "[rank1]:     f()")
    assert sentence_of((*traced, "[rank1]: ValueError: two", "[rank1]:   lines. HINT: do.")) == (
        "ValueError: two",
        "  lines. HINT: do.",
    )
    plain = (*traced, "[rank1]: ValueError: no advice")
    assert sentence_of(plain) == plain


def test_a_line_of_metrics_is_read_as_it_was_written():
    metrics = {"loss": 0.25, "epoch": 1, "samples_per_second": 1e-7}
    assert parse_line(format_line(metrics, 3)) == {"step": 3, **metrics}
    assert parse_line("step=3 of 5") == parse_line("loss=0.5") == parse_line("") == {}


def on_a_terminal(command, **environment):
    """What a terminal of 100 columns gets."""
    try:
        main, other = pty.openpty()
    except OSError:  # /dev without /dev/pts
        pytest.skip("a pseudo-terminal not found")
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    removed = ("CI", "NO_COLOR", "TERM", "COLUMNS", "LINES")
    clean = {k: v for k, v in os.environ.items() if not is_contract_variable(k) and k not in removed}
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env={**clean, **environment})
    os.close(other)
    read = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([main], [], [], 0.1)[0]:
            try:
                read += os.read(main, 65536)
            except OSError:  # the other side has ended
                break
    os.close(main)
    assert process.wait(timeout=10) == 0, read.decode()
    return read.decode().replace("\r\n", "\n")


def test_a_terminal_has_a_table_and_everything_else_plain_lines(tmp_path):
    (tmp_path / "trains.py").write_text(TRAINS)
    command = [sys.executable, "-m", "lightning_sagemaker.cli", "local", "--hosts", "2", "--distribution", "none"]
    command += ["--no-preload", "--root", str(tmp_path / "root"), "--", "python", str(tmp_path / "trains.py")]
    seen = on_a_terminal(command, TERM="xterm-256color")
    frames = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen)
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in frames.splitlines() if "│" in line]
    algo_1 = [row for row in rows if row[0] == "algo-1"]
    assert algo_1[-1] == ["algo-1", "finished", "3", "0.25", "12.5", "it is done [bold]"]
    assert {row[2] for row in algo_1} > {"1", "3"}  # it moved
    assert "running" in {row[1] for row in algo_1}
    assert [row for row in rows if row[0] == "algo-2"][-1] == ["algo-2", "finished", "", "", "", "it is done [bold]"]
    assert "algo-2 [1] | it is done [bold]" in frames
    assert "algo-1 [0] | step=" not in frames
    assert seen.count("\x1b[?25l") == seen.count("\x1b[?25h") == 1  # the cursor is shown again
    assert (tmp_path / "root" / "logs" / "algo-1-rank-0.log").read_text().count("samples_per_second") == 4
    for variable in ({"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "xterm", "CI": "true"}):
        plain = on_a_terminal(command, **variable)
        assert "\x1b" not in plain, variable
        assert "algo-1 [0] | step=3 epoch=0 loss=0.25 samples_per_second=12.5\n" in plain
