# SPDX-License-Identifier: Apache-2.0
"""Describes in a sentence why a host's training processes ended: rank, step, and exception or signal.

As :mod:`lightning_driver`: standard library only, Python 3.6.
"""

import os
import re
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRACEBACK = "Traceback (most recent call last)"
_PREFIX = re.compile(r"^\[rank(\d+)\]:\s?")
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:: .*|$)")
_STEP = re.compile(r"(?:^|[\s,{'\"])(?:global_)?step['\"]?\s?[=: ]\s?(\d+)")
_FAILED_RANK = re.compile(r"^\s*rank\s+: (\d+) \(local_rank: \d+\)")
_EXIT_CODE = re.compile(r"^\s*exitcode\s+: (-?\d+)")
_CONSEQUENCE = re.compile(
    r"(?i)connection (?:closed|reset)|closed by peer|broken pipe|socket closed|remote process exited|rendezvousclosed"
)
"""Messages of ranks that have lost another one."""


def reason(code: int, lines: "list[str]", memory_mib: int) -> str:
    """Why the program ended, as a sentence.

    Args:
        code: Exit code of the program; 128 and more for signals, as in a shell.
        lines: Last lines of the program's output.
        memory_mib: Memory of the program's largest process, in MiB.

    """
    rank, own_code = failed_rank(lines)
    own_code = code if own_code is None else own_code
    number = -own_code if own_code < 0 else own_code - 128
    found = exception(lines, rank)
    host = os.environ.get("SM_CURRENT_HOST")
    where = ("The program" if rank is None else f"Rank {rank}") + (f" on {host}" if host else "")
    steps = [match.group(1) for match in map(_STEP.search, lines) if match]
    when = f" after step {steps[-1]}" if steps else ""
    if number > 0 and not (found and number == signal.SIGABRT):
        memory = ""
        if number == signal.SIGKILL:
            memory = f"; probably out of memory (the largest process had {memory_mib} MiB)"
        return f"{where} was ended by {signal_name(number)}{when}{memory}"
    if found is not None:
        note = " (another rank exited first: see the other hosts' logs)" if _CONSEQUENCE.search(found) else ""
        return f"{where} failed{when}: {found}{note}"
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    return f"{where} ended with exit code {own_code}{when}: {last}"


def signal_name(number: int) -> str:
    """Name and number of a signal, such as ``SIGKILL (signal 9)``."""
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


def failed_rank(lines: "list[str]") -> "tuple[int | None, int | None]":
    """The rank whose failure torchrun reports as the first, and its exit code, negative for a signal; None without one.

    A rank that was terminated by a signal takes precedence over exceptions of others, which are then consequences.
    """
    begin = next((i for i, line in enumerate(lines) if line.strip() == "Failures:"), None)
    if begin is None:
        return None, None
    found = list(_failures(lines[begin:]))
    killed = [one for one in found if one[1] < 0 and one[1] != -signal.SIGTERM]
    chosen = killed or found[-1:]  # torchrun lists the root cause last
    return chosen[-1] if chosen else (None, None)


def _failures(lines: "list[str]") -> "Iterator[tuple[int, int]]":
    rank = None
    for line in lines:
        rank_match, code_match = _FAILED_RANK.match(line), _EXIT_CODE.match(line)
        if rank_match:
            rank = int(rank_match.group(1))
        elif code_match and rank is not None:
            yield rank, int(code_match.group(1))


def exception(lines: "list[str]", rank: "int | None" = None) -> "str | None":
    """The exception of the program's first traceback, of ``rank`` if lines have ranks; None if there is none.

    The launcher's own traceback about its ranks does not count.
    """
    found = list(_exceptions(lines))
    mine = [text for text, of in found if rank is not None and of == rank]
    return next(iter(mine or [text for text, _ in found]), None)


def _exceptions(lines: "list[str]") -> "Iterator[tuple[str, int | None]]":
    for start in _tracebacks(lines):
        prefix = _PREFIX.match(lines[start])
        for later in lines[start + 1 :]:
            if prefix and not later.startswith(prefix.group()):
                continue
            text = later[prefix.end() :] if prefix else later
            if _EXCEPTION.match(text):
                yield text, int(prefix.group(1)) if prefix else None
                break


def _tracebacks(lines: "list[str]") -> "Iterator[int]":
    """Where the program's own tracebacks begin, without the launcher's about its ranks."""
    for start, line in enumerate(lines):
        if _TRACEBACK in line and "torch/distributed/run" not in "".join(lines[start : start + 8]):
            yield start


def excerpt(lines: "list[str]") -> "list[str]":
    """Details after the reason: from the program's first traceback on, else the last lines."""
    start = next(_tracebacks(lines), None)
    return lines[-20:] if start is None else lines[start:]
